"""`Localizer.compare` for many queries at once: a GPU that gets one query after the other mostly waits.

It says the same for each query, of photos that are all of one size; for others there is `Localizer`. Matches do not
depend on what is told of cameras, so a query is matched once and its pose regressed as often as it is told otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.errors import ConfigError
from relograph.evaluation.place import AnyCamera, PosedPhotos
from relograph.geometry import Pose
from relograph.graphs.correspondence import Lenses
from relograph.localization.localizer import CANDIDATES_PER_REFERENCE, Compared, found_lenses, lenses_of
from relograph.localization.map_features import MapFeatures
from relograph.localization.photos import WorkingSize
from relograph.localization.solver import Doubt
from relograph.localization.spread import choose_spread_references
from relograph.models.answering import answering_precision
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import ImageFeatures, Matches
from relograph.models.shipped import LoadedMatchGNN
from relograph.retrieval import ExactIndex

Item = TypeVar("Item")
PHOTOS_AT_ONCE, PAIRS_AT_ONCE = 4, 16
"""On a CPU. Pairs are queries times references; chances between all cells of one pair take 6 MB, several times over."""
TIMES_ON_A_GPU = 8


@dataclass(frozen=True)
class EncodedQueries:
    """Photos as the network sees them, kept where it is."""

    photos: PosedPhotos
    size: WorkingSize
    """Of all of them."""
    features: ImageFeatures
    descriptors: Float[Tensor, "Q D"]

    def __len__(self) -> int:
        return len(self.photos)


@dataclass(frozen=True)
class Retrieved:
    """References of some queries, as many for each."""

    queries: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    """Of the map, for each query."""
    similarity: tuple[Float[Tensor, "R"], ...]


@dataclass(frozen=True)
class Matched:
    """Queries with their references after matching."""

    retrieved: Retrieved
    matches: Matches
    """Batch shape [B, R], where the network is."""
    on_cpu: Matches
    """The same, for those who solve."""


class BatchedNetwork:
    """A network that compares many queries at once with the photos of a map."""

    def __init__(self, network: LoadedMatchGNN) -> None:
        self.network = network
        self.device = next(network.model.parameters()).device
        self._times = TIMES_ON_A_GPU if self.device.type == "cuda" else 1
        self._model = fold_match_gnn(network.model)

    @torch.no_grad()
    def encode(self, photos: PosedPhotos) -> EncodedQueries:
        """Photos of one size, which are read here and not again."""
        images = [photos.read(row) for row in range(len(photos))]
        sizes = {WorkingSize.of(image.shape[1], image.shape[0]) for image in images}
        if len(sizes) != 1:
            raise ConfigError(f"expected photos of one size to encode together, found {len(sizes)} sizes.")
        (size,) = sizes
        features, descriptors = [], []
        for some in _groups(images, PHOTOS_AT_ONCE * self._times):
            pixels = torch.stack([torch.from_numpy(size.pixels(image)) for image in some])
            with answering_precision(self.device):
                encoded = self._model.encode(pixels.to(self.device))
            features.append(encoded)
            descriptors.append(self._model.descriptor(encoded.context))
        parts = (torch.cat([getattr(some, field.name) for some in features]) for field in fields(ImageFeatures))
        return EncodedQueries(photos, size, ImageFeatures(*parts), torch.cat(descriptors))

    def retrieve(
        self,
        queries: EncodedQueries,
        which: Sequence[int],
        references: MapFeatures,
        num_references: int,
        given: Sequence[Sequence[int]] | None = None,
    ) -> Iterator[Retrieved]:
        """References of the queries, few enough of them at a time; `given` are those to take instead."""
        descriptors = queries.descriptors[list(which)].to(references.descriptors.device)
        if given is None:
            num_candidates = min(CANDIDATES_PER_REFERENCE * num_references, len(references))
            found = ExactIndex(references.descriptors).search(descriptors, num_candidates)
            rows, similarity = [], []
            for row, cosine in zip(found.row.cpu(), found.similarity.cpu(), strict=True):
                there = row >= 0
                row, cosine = row[there], cosine[there]
                chosen = choose_spread_references(references.T_world_cam[row], cosine, num_references)
                rows.append(tuple(row[chosen].tolist()))
                similarity.append(cosine[chosen])
        else:
            rows = [tuple(row for row in of_query if row >= 0) for of_query in given]
            cosines = (descriptors.float() @ references.descriptors.float().mT).cpu()
            similarity = [cosine[list(of_query)] for cosine, of_query in zip(cosines, rows, strict=True)]
        at_once = max(1, PAIRS_AT_ONCE * self._times // num_references)
        for count in dict.fromkeys(len(of_query) for of_query in rows):
            for some in _groups([place for place, of_query in enumerate(rows) if len(of_query) == count], at_once):
                yield Retrieved(
                    tuple(which[place] for place in some),
                    tuple(rows[place] for place in some),
                    tuple(similarity[place] for place in some),
                )

    @torch.no_grad()
    def match(self, queries: EncodedQueries, retrieved: Retrieved, references: MapFeatures) -> Matched:
        """Every cell of the queries in each of their references."""
        flat = [row for of_query in retrieved.rows for row in of_query]
        by_size = list(references.take(flat, self.device))
        if len(by_size) != 1:
            raise ConfigError(f"expected a map of photos of one size, found {len(by_size)} sizes.")
        num_references = len(retrieved.rows[0])
        some = queries.features[list(retrieved.queries)]
        with answering_precision(self.device):
            matches: Matches = self._model.matcher(some, by_size[0][2], num_references, keep_log_coarse=False)
        # All of them in one copy for each kind of number, and not query by query.
        on_cpu = {name: part.cpu() for name, part in _parts(matches).items()}
        return Matched(retrieved, matches, Matches(**on_cpu))

    @torch.no_grad()
    def regress(
        self,
        queries: EncodedQueries,
        matched: Matched,
        references: MapFeatures,
        query_cameras: Sequence[AnyCamera],
        map_cameras: Sequence[AnyCamera],
    ) -> list[Compared]:
        """All that the solver needs of each query, whose cameras are told as they are in the two lists.

        Of these queries the network is told all lenses or none, and so of all their references.
        """
        retrieved, matches = matched.retrieved, matched.matches
        rows = torch.tensor(retrieved.rows)
        ref_sizes = [references.sizes[row] for row in retrieved.rows[0]]
        of_queries = [queries.size.camera(query_cameras[query]) for query in retrieved.queries]
        of_refs = [[references.sizes[row].camera(map_cameras[row]) for row in refs] for refs in retrieved.rows]
        query_lenses = lenses_of(of_queries, self.device)
        ref_lenses = lenses_of([camera for refs in of_refs for camera in refs], self.device)
        if ref_lenses is not None:
            by_query = (len(of_queries), -1)
            ref_lenses = Lenses(ref_lenses.K.unflatten(0, by_query), ref_lenses.distortion.unflatten(0, by_query))
        flows = self._model.flows(matches, queries.size.size_hw, ref_sizes[0].size_hw, query_lenses, ref_lenses)
        # Around the first reference, as `Localizer` has it: float32 is not for coordinates of a city.
        T_world_ref = references.T_world_cam[rows]
        origin = T_world_ref.t[:, :1]
        T_local_ref = Pose(T_world_ref.R, T_world_ref.t - origin).to(self.device, torch.float32)
        everything = torch.ones(rows.shape, dtype=torch.bool, device=self.device)
        answers = self._model.answer(matches.mutual, flows, T_local_ref, everything)
        T_edges = (T_local_ref @ answers.edges.T_ref_query).to("cpu", torch.float64)
        T_query, T_doubting = (
            some.T_world_query.to("cpu", torch.float64) for some in (answers.settled, answers.doubting)
        )
        agreement = answers.settled.agreement.tolist()
        lenses, doubting = (found_lenses(some) for some in (answers.settled, answers.doubting))
        log_sigma, overlap = answers.edges.log_sigma.cpu(), answers.edges.overlap.cpu()
        return [
            Compared(
                rows=refs,
                names=tuple(references.names[row] for row in refs),
                similarity=retrieved.similarity[idx],
                matches=_of_query(matched.on_cpu, idx),
                T_world_ref=T_world_ref[idx],
                query_hw=queries.size.size_hw,
                query_camera=of_queries[idx],
                ref_cameras=tuple(of_refs[idx]),
                T_world_edges=Pose(T_edges.R[idx], T_edges.t[idx] + origin[idx]),
                log_sigma=log_sigma[idx],
                overlap=overlap[idx],
                T_regressed=Pose(T_query.R[idx], T_query.t[idx] + origin[idx, 0]),
                agreement=agreement[idx],
                lenses=lenses[idx],
                doubting=Doubt(Pose(T_doubting.R[idx], T_doubting.t[idx] + origin[idx, 0]), *doubting[idx]),
                scale=queries.size.scale,
            )
            for idx, refs in enumerate(retrieved.rows)
        ]


def _of_query(matches: Matches, idx: int) -> Matches:
    """Those of one query, with memory of their own: a view goes to another process with all that it is a view of."""
    return Matches(**{name: part[idx : idx + 1].clone() for name, part in _parts(matches).items()})


def _parts(matches: Matches) -> dict[str, Tensor]:
    parts = {field.name: getattr(matches, field.name) for field in fields(Matches)}
    return {name: part for name, part in parts.items() if part is not None}


def _groups(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
