"""Photo in, pose out: the query finds references in a map, is matched with them, and the matches are solved for a pose.

decode     the photo
encode     it to dense features and a descriptor
retrieve   references that look like it, spread out in space, and some near a prior pose where there is one
match      every cell of the query with every reference; the network says a pose, edge by edge and fused
solve      the matches for the pose that explains most of them, started from the network's and the prior
judge      how sure that is; what is not sure enough is refused
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import degrees, inf, log1p, sqrt
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from relograph.errors import ConfigError, DatasetError, GeometryError, MissingExtraError
from relograph.export.keeping import kept_export
from relograph.export.running import with_onnx
from relograph.freed_memory import keep_freed_memory
from relograph.geometry import Camera, Pose, pose_error
from relograph.graphs.correspondence import Lenses, cell_anchors
from relograph.localization.confidence import UNCALIBRATED, confidence, sureness
from relograph.localization.focal import EXIF_LOG_SIGMA, FoundLens, UnknownFocal
from relograph.localization.map_features import PHOTOS_AT_ONCE
from relograph.localization.map_view import MapView, StoredMap
from relograph.localization.photos import AnyCamera, QueryImage, SeenPhoto, WorkingSize, read_query
from relograph.localization.prior import AnyPrior, Prior, as_prior
from relograph.localization.solver import Doubt, MatchedPoints, SolverAnswer, solve_query_pose
from relograph.localization.spread import choose_spread_references
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import COARSE_STRIDE, LIKELY_FOCAL, ImageFeatures, Matches
from relograph.models.query_network import AlikeReferences, Found, QueryNetwork
from relograph.models.settling import Settled
from relograph.models.shipped import Calibration, LoadedMatchGNN, Odds, load_match_gnn
from relograph.replaying import Replayed
from relograph.scenes.frame import FileSource

Solver = Literal["auto", "regress", "geometric"]
Runtime = Literal["torch", "onnx"]

MAX_REFERENCES = 32
CANDIDATES_PER_REFERENCE = 5
"""Photos that look like the query, for each that is chosen among them for spread."""
MIN_CONFIDENCE = 0.1
"""Of a match that the solver gets to see."""
MATCHES_PER_REFERENCE = 1000
SHARPEST_PX = 1.0
"""Places are not weighed as more precise than this: fine features are two pixels apart."""
QUERY_GROUP, MAP_GROUP = -2, -1
"""Of focal lengths that are not known: the query's own, and one for all such photos of the map."""
SHORTEST_FOCAL = 0.2
"""That a query may have, in units of its longer side: 136 degrees, more than any lens sees that is no fisheye. With
less, as of millimetres taken for pixels, matches agree on a pose near the map's middle."""


@dataclass(frozen=True)
class UsedReference:
    """A photo of the map that the query was compared with."""

    row: int
    name: str
    similarity: float
    """Of its descriptor and the query's, a cosine."""
    overlap: float
    """Share of the query that it sees, as the network guesses."""
    num_matches: int
    """That the solver was given."""
    num_inliers: int
    """Of those, the ones that agree with the solved pose."""


@dataclass(frozen=True)
class Answer:
    """Where a photo was taken, or why that cannot be said."""

    T_world_cam: Pose | None
    """Camera to world in metres, float64; None where the photo was not localized."""
    localized: bool
    confidence: float
    """The chance that the best pose is within 25 cm and 10 degrees of the truth. In a map that is not in metres it is
    that of 0.25 of its units, and a guess."""
    reason: str
    """Why the photo was not localized, or what is not known of its pose; empty where all is well."""
    T_regressed: Pose | None = None
    """The pose that the network says, sure or not."""
    T_solved: Pose | None = None
    """The pose that matches agree on, sure or not; None where they agree on none, or nobody asked them."""
    covariance: Float[Tensor, "6 6"] = field(default_factory=lambda: torch.diag(torch.full((6,), inf)).double())
    """Of the rotation vector in the camera's frame (radians) and of the centre in the world (metres)."""
    R_alone: Float[Tensor, "3 3"] | None = None
    """Where the camera looks, camera to world, where that is sure and its place is not."""
    scale_observable: bool = False
    """Whether matches alone tell how far the query is from the references; False where no solver was asked."""
    num_inliers: int = 0
    focal_px: float | None = None
    """The query's focal length in pixels of the photo, given or found; None where it is neither."""
    references: tuple[UsedReference, ...] = ()
    signs: Mapping[str, float] = field(default_factory=dict)
    """What the confidence was made from."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage: decode, encode, retrieve, match, solve."""

    @property
    def R_world_cam(self) -> Float[Tensor, "3 3"] | None:
        """Where the camera looks, camera to world: also where only that is sure, and not where it is."""
        return self.R_alone if self.T_world_cam is None else self.T_world_cam.R

    @property
    def T_best(self) -> Pose | None:
        """The pose that would be the answer were it sure enough: what matches agree on, or what the network says."""
        return self.T_regressed if self.T_solved is None else self.T_solved


@dataclass(frozen=True)
class Compared:
    """A query and its references after matching: all that the rest of the road needs."""

    rows: tuple[int, ...]
    """Of the references in the map."""
    names: tuple[str, ...]
    similarity: Float[Tensor, "R"]
    matches: Matches
    """Of one query with R references."""
    T_world_ref: Pose
    """Batch shape [R], float64, on the CPU."""
    query_hw: tuple[int, int]
    query_camera: Camera | UnknownFocal
    """Of what the network saw of the query."""
    ref_cameras: tuple[Camera | UnknownFocal, ...]
    T_world_edges: Pose
    """What each edge says about the query's pose, batch shape [R], float64."""
    log_sigma: Float[Tensor, "R 2"]
    """Log of the error that each edge expects: metres, radians."""
    overlap: Float[Tensor, "R"]
    """Logits of the share of the query that each reference sees."""
    T_regressed: Pose
    """What the network says in the end: all edges together, settled on the matches."""
    agreement: float
    """Share of the matches, by weight, that agree with it."""
    lenses: tuple[FoundLens, FoundLens]
    """Of the query and of its references, as the network has them where they are not known."""
    doubting: Doubt | None = None
    """What the network would say if no lens had been told."""
    prior: Prior | None = None
    """Where the photo was taken, as somebody knows already."""
    scale: float = 1.0
    """Pixels that the network saw for each of the photo's."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage, up to here."""


@dataclass(frozen=True)
class SeenQuery:
    """A photo that was read."""

    size: WorkingSize
    camera: Camera | UnknownFocal
    """Of what the network sees."""
    pixels: UInt8[Tensor, "H W 3"]
    """What it sees."""
    seconds: float


@dataclass(frozen=True)
class EncodedQuery:
    """A query as the network knows it."""

    query: SeenQuery
    features: ImageFeatures
    descriptor: Float[Tensor, "D"]
    seconds: float


class Localizer:
    """Localizes photos in a map: a `Map`, which may change meanwhile, or features of posed photos that are at hand.

    The network is the one that made the map. `solver` chooses the pose: `regress` is what the network says, `geometric`
    what matches agree on, and `auto` the latter where there is one. With the `runtime` onnx the network encodes and
    matches by the files in the folder `exported`, which `relograph export` writes; without one they are exported once
    and kept in the user's cache.
    """

    def __init__(
        self,
        map: MapView | StoredMap,
        network: LoadedMatchGNN | None = None,
        *,
        num_references: int = 7,
        solver: Solver = "auto",
        runtime: Runtime = "torch",
        exported: Path | None = None,
    ) -> None:
        _check_num_references(num_references)
        if solver not in ("auto", "regress", "geometric"):
            raise ConfigError(f"The solver is auto, regress or geometric, got {solver!r}.")
        if runtime not in ("torch", "onnx"):
            raise ConfigError(f"The runtime is torch or onnx, got {runtime!r}.")
        if network is None:
            network = load_match_gnn() if isinstance(map, MapView) else map.load_network()
        elif not isinstance(map, MapView):
            map.answer_with(network)
        self._map = map
        self.map.require(network)
        self.network = network
        self.num_references = num_references
        self.solver: Solver = solver
        model = fold_match_gnn(network.model)
        if runtime == "onnx":
            exported = kept_export(network) if exported is None else exported
            model = with_onnx(model, exported, weights_sha256=network.sha256)
        self.device = next(network.model.parameters()).device
        network_part = QueryNetwork(model, self.device)
        self._encode_images: Callable[..., tuple[ImageFeatures, Tensor]] = network_part.encode
        self._look: Callable[..., Found] = network_part.look
        if self.device.type == "cpu":
            keep_freed_memory()
        elif self.device.type == "cuda" and runtime == "torch":
            self._encode_images, self._look = Replayed(network_part.encode), Replayed(network_part.look)

    @property
    def map(self) -> MapView:
        """The photos that the next query is compared with."""
        return self._map if isinstance(self._map, MapView) else self._map.features

    def on(self, map: MapView, num_references: int) -> "Localizer":
        """The same network, neither prepared nor recorded again, on another map that it made."""
        _check_num_references(num_references)
        map.require(self.network)
        other = copy(self)
        other._map, other.num_references = map, num_references
        return other

    def localize(
        self,
        image: QueryImage,
        *,
        camera: AnyCamera = None,
        prior: AnyPrior = None,
        references: Sequence[int] | None = None,
    ) -> Answer:
        """Where the photo was taken.

        `camera` are the intrinsics of the photo; without any, the solver finds its focal length, about where the file
        tells one. `prior` is about where it was taken, as far as that is known: half of the references may then come
        from there. A bare pose means `Prior(pose)`: its direction is known, and its place may be 3 m off. `references`
        are rows of the map to use instead of those that are found.
        """
        return self._answer(self.compare(image, camera=camera, prior=prior, references=references))

    def localize_batch(
        self, images: Sequence[QueryImage], *, cameras: Sequence[AnyCamera] | None = None, prior: AnyPrior = None
    ) -> list[Answer]:
        """Where each photo was taken; those of one size are encoded together. One that is no photo is refused."""
        cameras = [None] * len(images) if cameras is None else cameras
        if len(cameras) != len(images):
            raise ConfigError(f"expected a camera for each of {len(images)} photos, got {len(cameras)}. Give them all.")
        answers: list[Answer] = []
        for first in range(0, len(images), PHOTOS_AT_ONCE):
            some = slice(first, first + PHOTOS_AT_ONCE)
            read = [see_query(image, camera) for image, camera in zip(images[some], cameras[some], strict=True)]
            encoded = iter(self.encode([query for query in read if isinstance(query, SeenQuery)]))
            for query in read:
                compared = query if isinstance(query, Answer) else self.compare_encoded(next(encoded), prior)
                answers.append(self._answer(compared))
        return answers

    def _answer(self, compared: Compared | Answer) -> Answer:
        if isinstance(compared, Answer):
            return compared
        return answer_compared(compared, self.solver, self.calibration)

    @property
    def calibration(self) -> Calibration:
        """How answers are judged."""
        return self.network.calibration or UNCALIBRATED

    def compare(
        self,
        image: QueryImage,
        *,
        camera: AnyCamera = None,
        prior: AnyPrior = None,
        references: Sequence[int] | None = None,
    ) -> Compared | Answer:
        """The first half of `localize`, all that the network does; an answer already where there is nothing to compare.

        `answer_compared` is the other half. It needs neither network nor map, so another process can do it meanwhile.
        """
        query = see_query(image, camera)
        if isinstance(query, Answer):
            return query
        (encoded,) = self.encode([query])
        return self.compare_encoded(encoded, prior, references)

    def retrieve(self, descriptor: Float[Tensor, "D"], prior: AnyPrior = None) -> tuple[list[int], Float[Tensor, "R"]]:
        """Rows of references that look like the query and stand apart, with the cosines of their descriptors.

        Of those that are near a prior there are up to half: were it wrong, the other half would still find the place.
        """
        return self._retrieve(self.map, descriptor, as_prior(prior))

    def _retrieve(
        self, view: MapView, descriptor: Float[Tensor, "D"], prior: Prior | None
    ) -> tuple[list[int], Float[Tensor, "R"]]:
        if not len(view):
            return [], torch.zeros(0)
        alike, similarity = view.nearest(descriptor, CANDIDATES_PER_REFERENCE * self.num_references)
        chosen = choose_spread_references(view.T_world_cam[alike], similarity, self.num_references).tolist()
        rows = [alike[i] for i in chosen]
        if prior is None:
            return rows, similarity[chosen]
        first = rows[: (self.num_references + 1) // 2]
        near = [row for row in prior.references(view.T_world_cam, self.num_references) if row not in first]
        rows = list(dict.fromkeys([*first, *near[: self.num_references // 2], *rows]))[: self.num_references]
        return rows, view.similarity(descriptor, rows)

    def encode(self, queries: Sequence[SeenQuery]) -> list[EncodedQuery]:
        """Queries as the network sees them, those of one size together; the time is shared between them."""
        rows_by_size: dict[tuple[int, int], list[int]] = {}
        for row, query in enumerate(queries):
            rows_by_size.setdefault(query.size.size_hw, []).append(row)
        encoded: dict[int, EncodedQuery] = {}
        for rows in rows_by_size.values():
            start = perf_counter()
            images = torch.stack([queries[row].pixels for row in rows]).to(self.device)
            features, descriptors = self._encode_images(images)
            descriptors = descriptors.cpu()
            seconds = (perf_counter() - start) / len(rows)
            for i, row in enumerate(rows):
                encoded[row] = EncodedQuery(queries[row], features[i : i + 1], descriptors[i], seconds)
        return [encoded[row] for row in range(len(queries))]

    def compare_encoded(
        self, encoded: EncodedQuery, prior: AnyPrior = None, references: Sequence[int] | None = None
    ) -> Compared | Answer:
        """The rest of `compare` for a photo that was encoded, whatever map the encoding Localizer had."""
        view, prior = self.map, as_prior(prior)
        seconds = {"decode": encoded.query.seconds, "encode": encoded.seconds}
        with _timed(seconds, "retrieve"):
            if references is None:
                rows, similarity = self._retrieve(view, encoded.descriptor, prior)
            else:
                rows, similarity = _given(view, references, encoded.descriptor)
        if not rows:
            return Answer(None, False, 0.0, "No photo of the map has a pose and a descriptor.", seconds=seconds)
        with _timed(seconds, "match"):
            compared = self._compare(view, encoded, rows, similarity)
        return replace(compared, prior=prior, scale=encoded.query.size.scale, seconds=seconds)

    def _compare(
        self, view: MapView, encoded: EncodedQuery, rows: list[int], similarity: Float[Tensor, "R"]
    ) -> Compared:
        """Matches and poses of the query with references, which may be of several sizes."""
        T_world_ref = view.T_world_cam[rows]
        size, query_camera = encoded.query.size, encoded.query.camera
        ref_cameras = [_ref_camera(view, row) for row in rows]
        query_lens, ref_lenses = (lenses_of(cameras, self.device) for cameras in ([query_camera], ref_cameras))
        alike, order = [], []
        for size_hw, which, references in view.take(rows, self.device):
            of_refs = None
            if ref_lenses is not None:
                of_refs = Lenses(ref_lenses.K[None, which], ref_lenses.distortion[None, which])
            alike.append(AlikeReferences(size_hw, references, of_refs, len(which)))
            order += which
        # Around the first reference: coordinates of a city in float32 would be off by centimetres.
        T_world_local = Pose(torch.eye(3, dtype=torch.float64), T_world_ref.t[0])
        T_local_ref = (T_world_local.inverse() @ T_world_ref).to(self.device, torch.float32)
        found = self._look(
            encoded.features,
            size.size_hw,
            query_lens,
            alike,
            torch.tensor(order).argsort().to(self.device),
            T_local_ref[None],
        )
        T_local_edges = (T_local_ref[None] @ found.T_ref_query)[0].to("cpu", torch.float64)
        return Compared(
            rows=tuple(rows),
            names=tuple(view.names[row] for row in rows),
            similarity=similarity,
            matches=found.matches,
            T_world_ref=T_world_ref,
            query_hw=size.size_hw,
            query_camera=query_camera,
            ref_cameras=tuple(ref_cameras),
            T_world_edges=T_world_local @ T_local_edges,
            log_sigma=found.log_sigma[0].cpu(),
            overlap=found.overlap[0].cpu(),
            T_regressed=T_world_local @ found.settled.T_world_query[0].to("cpu", torch.float64),
            agreement=float(found.settled.agreement[0]),
            lenses=found_lenses(found.settled)[0],
            doubting=Doubt(
                T_world_local @ found.doubting.T_world_query[0].to("cpu", torch.float64),
                *found_lenses(found.doubting)[0],
            ),
        )


def _check_num_references(num_references: int) -> None:
    if not 1 <= num_references <= MAX_REFERENCES:
        raise ConfigError(f"A query has 1 to {MAX_REFERENCES} references, got {num_references}.")


def found_lenses(settled: Settled) -> list[tuple[FoundLens, FoundLens]]:
    """Lenses of each query and of its references."""
    by_lens = torch.stack([LIKELY_FOCAL * settled.log_focal.exp(), settled.bend], dim=-1).tolist()  # [B, 2, 2]
    return [(FoundLens(*query), FoundLens(*refs)) for query, refs in by_lens]


def see_query(image: QueryImage, camera: AnyCamera = None) -> SeenQuery | Answer:
    """The photo, or why it is none."""
    start = perf_counter()
    if isinstance(image, Path | str):  # a file that is not there is an error; one that is no photo, a refusal
        image = FileSource(Path(image)).read_bytes()
    try:
        photo = read_query(image)
    except DatasetError as error:
        return Answer(None, False, 0.0, str(error))
    return SeenQuery(photo.size, _query_camera(camera, photo), torch.from_numpy(photo.pixels), perf_counter() - start)


def _given(view: MapView, rows: Sequence[int], descriptor: Float[Tensor, "D"]) -> tuple[list[int], Float[Tensor, "R"]]:
    if not rows or len(rows) > MAX_REFERENCES or min(rows) < 0 or max(rows) >= len(view):
        raise ConfigError(
            f"References are 1 to {MAX_REFERENCES} rows of a map of {len(view)} photos, got {list(rows)}."
        )
    return list(rows), view.similarity(descriptor, rows)


def _query_camera(camera: AnyCamera, photo: SeenPhoto) -> Camera | UnknownFocal:
    """What is known of the query's camera, for what the network sees: given, told by its file, or its size alone."""
    size = photo.size
    if camera is None:
        camera = UnknownFocal(size.photo_width, size.photo_height, QUERY_GROUP)
        if photo.exif_focal is not None:
            camera = replace(camera, likely=photo.exif_focal, log_sigma=EXIF_LOG_SIGMA)
    seen = size.camera(camera)
    if isinstance(camera, Camera) and camera.model != "fisheye":
        _check_focal(camera)
    return seen


def _check_focal(camera: Camera) -> None:
    shortest_px = SHORTEST_FOCAL * max(camera.width, camera.height)
    if min(camera.fx, camera.fy) < shortest_px:
        raise GeometryError(
            f"expected a focal length of at least {shortest_px:g} pixels for a photo of {camera.width} x "
            f"{camera.height}, found {min(camera.fx, camera.fy):g}. Turn millimetres into pixels of this photo, or "
            "leave it out to have it found."
        )


def _ref_camera(view: MapView, row: int) -> Camera | UnknownFocal:
    size, camera = view.sizes[row], view.cameras[row]
    return size.camera(camera or UnknownFocal(size.photo_width, size.photo_height, MAP_GROUP))


def lenses_of(cameras: Sequence[AnyCamera], device: torch.device) -> Lenses | None:
    """Cameras as the network is told them; None where one of them is not known.

    Two radial coefficients are told; the solver knows the rest of a lens. A fisheye's are no such coefficients.
    """
    known = [camera for camera in cameras if isinstance(camera, Camera) and camera.model != "fisheye"]
    if len(known) < len(cameras):
        return None
    K = torch.stack([camera.K for camera in known]).to(device, torch.float32)
    distortion = torch.tensor([(camera.distortion or (0.0, 0.0))[:2] for camera in known], device=device)
    return Lenses(K, distortion.to(torch.float32))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = perf_counter()
    yield
    seconds[stage] = perf_counter() - start


# From matches to the answer


@dataclass(frozen=True)
class Judged:
    """An answer with what it rests on."""

    answer: Answer
    points: MatchedPoints
    """Matches that the solver was given."""
    solved: SolverAnswer | None
    """None where the solver was not asked."""
    odds: Odds
    """By which the answer was judged."""


def answer_compared(compared: Compared, solver: Solver, calibration: Calibration = UNCALIBRATED) -> Answer:
    """The answer once the query has been matched: its pose, how sure it is, and why it may be refused."""
    return judge(compared, solver, calibration).answer


def judge(compared: Compared, solver: Solver, calibration: Calibration = UNCALIBRATED) -> Judged:
    """The answer in the photo's own pixels, with the time of all stages, and what it rests on."""
    seconds = dict(compared.seconds)
    with _timed(seconds, "solve"):
        judged = _judge(compared, solver, calibration)
    focal_px = None if judged.answer.focal_px is None else judged.answer.focal_px / compared.scale
    return replace(judged, answer=replace(judged.answer, focal_px=focal_px, seconds=seconds))


def _judge(compared: Compared, solver: Solver, calibration: Calibration) -> Judged:
    points = select_matches(compared.matches, compared.query_hw)
    if not (compared.T_regressed.R.isfinite().all() and compared.T_regressed.t.isfinite().all()):
        reason = "The network's answer is no pose: its weights are damaged, or the map's poses."
        return Judged(Answer(None, False, 0.0, reason), points, None, calibration.unsolved)
    sigma_m, sigma_rad = expected_error(compared.log_sigma)
    solved = None if solver == "regress" else _solve(compared, points, sigma_m, is_required=solver == "geometric")
    signs = _signs(compared, points, solved)
    if solved is not None and solved.T_world_cam is not None:
        odds, T_solved, covariance = calibration.solved, solved.T_world_cam, solved.covariance
    else:
        variance = torch.tensor([sigma_rad**2] * 3 + [sigma_m**2] * 3, dtype=torch.float64)
        odds = calibration.regressed if solved is None else calibration.unsolved
        T_solved, covariance = None, torch.diag(variance)
    chance = confidence(signs, odds)
    T_best = compared.T_regressed if T_solved is None else T_solved
    answer = Answer(
        T_world_cam=T_best,
        localized=True,
        confidence=chance,
        reason="" if solved is None else solved.reason,
        T_regressed=compared.T_regressed,
        T_solved=T_solved,
        covariance=covariance,
        scale_observable=solved is not None and solved.scale_observable,
        num_inliers=0 if solved is None else solved.num_inliers,
        focal_px=_focal_px(compared, solved),
        references=_references(compared, points, solved),
        signs=signs,
    )
    if solver == "geometric" and T_solved is None:
        assert solved is not None
        answer = replace(answer, T_world_cam=None, localized=False, confidence=0.0, reason=solved.reason)
    elif chance < odds.threshold:
        # Where matches leave the distance open, they may still be sure of the rest.
        is_turn_sure = (
            T_solved is not None
            and not answer.scale_observable
            and confidence(_signs(compared, points, solved, of_place=False), odds) >= odds.threshold
        )
        reason = _refusal(answer, chance, odds.threshold, is_turn_sure=is_turn_sure)
        R_alone = T_best.R if is_turn_sure else None
        answer = replace(answer, T_world_cam=None, R_alone=R_alone, localized=False, reason=reason)
    return Judged(answer, points, solved, odds)


def select_matches(matches: Matches, query_hw: tuple[int, int]) -> MatchedPoints:
    """Matches for the solver: mutual, confident, and of each reference those that count most.

    A match counts by its confidence and by the inverse square of how far it may be off within its cell.
    """
    mutual, sigma_px = matches.mutual[0], matches.sigma_px[0].clamp_min(SHARPEST_PX)
    weight = matches.confidence[0] / sigma_px.square()
    usable = mutual & (matches.confidence[0] > MIN_CONFIDENCE) & matches.xy[0].isfinite().all(dim=-1)
    num_best = min(MATCHES_PER_REFERENCE, weight.shape[1])
    best = weight.masked_fill(~usable, -1.0).topk(num_best, dim=1)
    ref_idx, rank = (best.values > 0).nonzero().unbind(dim=1)
    cell = best.indices[ref_idx, rank]
    anchors = cell_anchors(*query_hw, COARSE_STRIDE, cell.device)
    return MatchedPoints(
        query_xy=anchors[cell].double().cpu().numpy(),
        ref_xy=matches.xy[0, ref_idx, cell].double().cpu().numpy(),
        ref_idx=ref_idx.cpu().numpy(),
        weight=weight[ref_idx, cell].double().cpu().numpy(),
    )


def expected_error(log_sigma: Float[Tensor, "R 2"]) -> tuple[float, float]:
    """The error that the fused pose expects, in metres and radians.

    That of its edges, weighed as they are in it. It is not divided by their number: they err alike.
    """
    weight = (-2 * log_sigma.double()).softmax(dim=0)
    sigma_m, sigma_rad = (weight * log_sigma.double().exp()).sum(dim=0).tolist()
    return sigma_m, sigma_rad


def _solve(compared: Compared, points: MatchedPoints, sigma_m: float, *, is_required: bool) -> SolverAnswer | None:
    try:
        return solve_query_pose(
            points,
            compared.T_world_ref,
            compared.query_camera,
            compared.ref_cameras,
            start=compared.T_regressed,
            start_sigma_m=sigma_m,
            start_lenses=compared.lenses,
            doubting=compared.doubting,
            also_from=None if compared.prior is None else compared.prior.start(compared.T_regressed),
        )
    except MissingExtraError:
        if is_required:
            raise
        return None  # the network's pose is the answer then


def _signs(
    compared: Compared, points: MatchedPoints, solved: SolverAnswer | None, *, of_place: bool = True
) -> dict[str, float]:
    """What speaks for the answer, or where it is not `of_place`, for where the camera looks alone."""
    sigma_m, sigma_rad = expected_error(compared.log_sigma)

    def sure(distance_m: float, angle_deg: float) -> float:
        return sureness(distance_m if of_place else 0.0, angle_deg)

    weight = (-2 * compared.log_sigma.double()).softmax(dim=0)
    error = pose_error(compared.T_world_edges, compared.T_regressed)
    signs = {
        "overlap": float(compared.overlap.max().clamp(-6.0, 6.0)),
        "certainty": sure(sigma_m, degrees(sigma_rad)),
        "unanimity": sure(
            float(weight[:, 0] @ error.translation_error_m), float(weight[:, 1] @ error.rotation_error_deg)
        ),
        "matched": log1p(len(points.ref_idx)),
        "settled": compared.agreement,
        "similarity": float(compared.similarity.max()),
    }
    if solved is None or solved.T_world_cam is None:
        return signs
    others = [pose for pose in (compared.T_regressed, solved.T_by_other_focals) if pose is not None]
    differences = [pose_error(solved.T_world_cam, other) for other in others]
    variance_rad, variance_m = (
        float(torch.linalg.eigvalsh(solved.covariance[some, some])[-1]) for some in (slice(0, 3), slice(3, 6))
    )
    return signs | {
        "inliers": log1p(solved.num_inliers),
        "inlier_share": solved.num_inliers / max(len(solved.inlier_mask), 1),
        "precision": sure(sqrt(max(variance_m, 0.0)), degrees(sqrt(max(variance_rad, 0.0)))),
        "agreement": min(sure(float(by.translation_error_m), float(by.rotation_error_deg)) for by in differences),
        "focal_known": float(isinstance(compared.query_camera, Camera) and not solved.focal_refuted),
    }


def _references(compared: Compared, points: MatchedPoints, solved: SolverAnswer | None) -> tuple[UsedReference, ...]:
    num_refs = len(compared.rows)
    num_matches = np.bincount(np.asarray(points.ref_idx), minlength=num_refs)
    num_inliers = [0] * num_refs if solved is None else solved.num_inliers_by_ref.tolist()
    return tuple(
        UsedReference(row, name, float(similarity), float(overlap), int(matched), int(inliers))
        for row, name, similarity, overlap, matched, inliers in zip(
            compared.rows,
            compared.names,
            compared.similarity,
            compared.overlap.sigmoid(),
            num_matches,
            num_inliers,
            strict=True,
        )
    )


def _focal_px(compared: Compared, solved: SolverAnswer | None) -> float:
    """The query's focal length as the network saw it: given, or found with the pose."""
    if solved is not None and solved.T_world_cam is not None:
        return solved.focal_px
    camera = compared.query_camera
    return camera.fx if isinstance(camera, Camera) else camera.longer_side * compared.lenses[0].focal


def _refusal(answer: Answer, chance: float, threshold: float, *, is_turn_sure: bool) -> str:
    """Why an answer that is not sure enough is refused, in words."""
    seen = max(reference.overlap for reference in answer.references)
    num_matches = sum(reference.num_matches for reference in answer.references)
    words = [f"Not sure enough: the pose is right with a chance of {chance:.0%}, and {threshold:.0%} are asked for."]
    if answer.T_solved is not None:
        found = f"{answer.num_inliers} of {num_matches} matches agree on a pose"
    elif answer.reason:
        found = answer.reason.rstrip(".")
    else:
        found = f"{num_matches} places of the photo are found in the references"
    words.append(f"{found}; the best reference sees {seen:.0%} of the photo.")
    if answer.T_solved is not None and answer.reason:
        words.append(answer.reason)
    if is_turn_sure:
        words.append("Where the camera looks is sure all the same.")
    elif 2 * answer.num_inliers < num_matches:
        words.append("The place may not be in the map.")
    return " ".join(words)
