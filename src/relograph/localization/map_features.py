"""What is kept of a map: the features of its photos, computed once, and where each was taken."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from relograph.errors import CheckpointError, DatasetError
from relograph.geometry import Camera, Pose
from relograph.localization.focal import UnknownFocal
from relograph.localization.photos import AnyCamera, PosedPhoto, WorkingSize, camera_of
from relograph.models.answering import answering_precision
from relograph.models.match_gnn import ImageFeatures, MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.retrieval import ExactIndex

Precision = Literal["float16", "int8"]

FILE = "features.safetensors"
FORMAT = "relograph map features 1"
PHOTOS_AT_ONCE = 8
LARGEST_INT8 = 127
NUM_LEVELS = 3
"""Context, coarse and fine."""


@dataclass(frozen=True)
class StoredFeatures:
    """Features of M photos of one size, as they are kept: whole rows of channels, which is how they are read."""

    parts: tuple[Tensor, ...]
    """Context, coarse and fine, [M, h, w, C] each; where not all are kept, the first of them."""
    steps: tuple[Tensor, ...] | None
    """What a 1 stands for in int8, of each photo and channel, [M, 1, 1, C] each; None where features are floats."""

    @staticmethod
    def of(features: ImageFeatures, precision: Precision) -> "StoredFeatures":
        return StoredFeatures.of_levels((features.context, features.coarse, features.fine), precision)

    @staticmethod
    def of_levels(levels: Sequence[Float[Tensor, "M _C _h _w"]], precision: Precision) -> "StoredFeatures":
        """The first levels, as `encode_levels` gives them."""
        rows = [level.permute(0, 2, 3, 1) for level in levels]
        if precision == "float16":
            return StoredFeatures(tuple(part.to(torch.float16).contiguous() for part in rows), None)
        # A photo has scales of its own: a bright window in one must not coarsen the features of all.
        rows = [part.float() for part in rows]
        steps = [part.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-12) / LARGEST_INT8 for part in rows]
        parts = [(part / step).round_().to(torch.int8).contiguous() for part, step in zip(rows, steps, strict=True)]
        return StoredFeatures(tuple(parts), tuple(steps))

    @staticmethod
    def cat(stored: Sequence["StoredFeatures"]) -> "StoredFeatures":
        parts = [torch.cat(parts) for parts in zip(*(some.parts for some in stored), strict=True)]
        steps = [torch.cat(steps) for steps in zip(*(some.steps for some in stored if some.steps), strict=True)]
        return StoredFeatures(tuple(parts), tuple(steps) if steps else None)

    def take(self, rows: Int[Tensor, "N"], device: torch.device) -> ImageFeatures:
        """Features of some photos, all of whose levels are kept."""
        return ImageFeatures(*self.take_levels(rows, device))

    def take_levels(self, rows: Int[Tensor, "N"], device: torch.device) -> list[Float[Tensor, "N _C _h _w"]]:
        """The levels that are kept in float32; the fine one in float16, as a query looks at little of it."""
        dtypes = (torch.float32, torch.float32, torch.float16)[: len(self.parts)]
        parts = [part[rows.to(part.device)].to(device) for part in self.parts]
        if self.steps is None:
            parts = [part.to(dtype) for part, dtype in zip(parts, dtypes, strict=True)]
        else:
            steps = [step[rows.to(step.device)].to(device) for step in self.steps]
            parts = [part * step.to(dtype) for part, step, dtype in zip(parts, steps, dtypes, strict=True)]
        return [part.permute(0, 3, 1, 2) for part in parts]

    def to(self, device: torch.device) -> "StoredFeatures":
        steps = None if self.steps is None else tuple(step.to(device) for step in self.steps)
        return StoredFeatures(tuple(part.to(device) for part in self.parts), steps)

    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.parts, *(self.steps or ())))


@torch.no_grad()
def encode_levels(
    model: MatchGNN, images: Tensor, num_levels: int
) -> tuple[list[Float[Tensor, "M _C _h _w"]], Float[Tensor, "M D"]]:
    """The first levels of features of images [M, H, W, 3], and their descriptors; what is not asked for is no work."""
    encoder, device = model.encoder, next(model.parameters()).device
    with answering_precision(device):
        half = encoder.at_half(images.to(device, non_blocking=True))
        eighth, context = encoder.context(half)
        levels = [context]
        if num_levels > 1:
            levels.append(encoder.coarse(eighth, context))
        if num_levels > 2:
            levels.append(encoder.fine(half, levels[1]))
    return levels[:num_levels], model.descriptor(context)


@torch.no_grad()
def complete_levels(
    model: MatchGNN, images: Tensor, levels: Sequence[Float[Tensor, "M _C _h _w"]], device: torch.device
) -> ImageFeatures:
    """All features of images [M, H, W, 3] of which the first levels are known.

    Context and coarse features together save most of the work; without both it is done anew.
    """
    images = images.to(next(model.parameters()).device, non_blocking=True)
    with answering_precision(images.device):
        if len(levels) < 2:
            return ImageFeatures(*(part.to(device) for part in vars(model.encode(images)).values()))
        context, coarse = levels
        fine = model.encoder.fine(model.encoder.at_half(images), coarse.to(images.device))
    return ImageFeatures(context, coarse, fine.to(device))


@dataclass(frozen=True)
class MapFeatures:
    """The photos of a map as the network sees them.

    A photo of 320 x 240 pixels takes 1.6 MB in float16, three quarters of it the fine features that say where within a
    cell; in int8 half of that. They are kept and not computed again: that would take as long for each reference as the
    query itself. From a file only the photos that are asked for are read.
    """

    names: tuple[str, ...]
    T_world_cam: Pose
    """Batch shape [F], float64, on the CPU."""
    cameras: tuple[AnyCamera, ...]
    """In pixels of the photos as they were given."""
    sizes: tuple[WorkingSize, ...]
    descriptors: Float[Tensor, "F D"]
    """By which photos are found, of unit length."""
    stored_by_size: dict[tuple[int, int], StoredFeatures]
    place: Int[Tensor, "F"]
    """Of each photo among those of its size."""
    network_sha256: str
    """Of the weights that made the features; no others can read them."""
    precision: Precision

    def __len__(self) -> int:
        return len(self.names)

    @staticmethod
    def of(
        photos: Sequence[PosedPhoto],
        network: LoadedMatchGNN,
        *,
        precision: Precision = "float16",
        device: torch.device | str = "cpu",
        progress: Progress = SILENT,
    ) -> "MapFeatures":
        """Features of posed photos, computed where the network is and kept on `device`."""
        if not photos:
            raise DatasetError("expected a map of at least one photo, found none. Choose other frames.")
        sizes: list[WorkingSize] = []
        row_by_stored: list[int] = []
        batches: dict[tuple[int, int], list[StoredFeatures]] = {}
        rows_by_size: dict[tuple[int, int], list[int]] = {}
        descriptors: list[Tensor] = []
        with progress.task("computing map features", total=len(photos)) as advance:
            for rows, images in _batches_of_one_size(photos, sizes):
                levels, descriptor = encode_levels(network.model, torch.stack(images), NUM_LEVELS)
                size_hw = sizes[rows[0]].size_hw
                stored = StoredFeatures.of_levels(levels, precision)
                batches.setdefault(size_hw, []).append(stored.to(torch.device(device)))
                rows_by_size.setdefault(size_hw, []).extend(rows)
                row_by_stored.extend(rows)
                descriptors.append(descriptor.to(device))
                advance(len(rows))
        place = torch.empty(len(photos), dtype=torch.long)
        for rows in rows_by_size.values():
            place[rows] = torch.arange(len(rows))
        stored_by_size = {size_hw: StoredFeatures.cat(batches.pop(size_hw)) for size_hw in list(batches)}
        return MapFeatures(
            names=tuple(photo.name for photo in photos),
            T_world_cam=Pose.stack([photo.T_world_cam.detach().to("cpu", torch.float64) for photo in photos]),
            cameras=tuple(map(camera_of, photos)),
            sizes=tuple(sizes),
            descriptors=torch.cat(descriptors)[torch.tensor(row_by_stored).argsort()],
            stored_by_size=stored_by_size,
            place=place,
            network_sha256=network.sha256,
            precision=precision,
        )

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        """Rows of up to `num` photos that look most like a query, most alike first, and the cosines of that."""
        found = self._index.search(descriptor[None].to(self.descriptors.device), min(num, len(self)))
        row, similarity = found.row[0].cpu(), found.similarity[0].cpu()
        return row[row >= 0].tolist(), similarity[row >= 0]

    def similarity(self, descriptor: Float[Tensor, "D"], rows: Sequence[int]) -> Float[Tensor, "R"]:
        """The cosines of a query's descriptor and those of some photos."""
        descriptors = self.descriptors[list(rows)].float()
        return (descriptors @ descriptor.to(descriptors)).cpu()

    @cached_property
    def _index(self) -> ExactIndex:
        return ExactIndex(self.descriptors)

    def take(
        self, rows: Sequence[int], device: torch.device
    ) -> Iterator[tuple[tuple[int, int], list[int], ImageFeatures]]:
        """Features of some photos, those of one size (height, width) together: which of `rows` they are, and they."""
        for size_hw in dict.fromkeys(self.sizes[row].size_hw for row in rows):
            which = [i for i, row in enumerate(rows) if self.sizes[row].size_hw == size_hw]
            yield size_hw, which, self.stored_by_size[size_hw].take(self.place[[rows[i] for i in which]], device)

    @property
    def bytes_per_photo(self) -> float:
        """How much a photo takes, on the average."""
        return sum(stored.num_bytes() for stored in self.stored_by_size.values()) / len(self)

    def save(self, folder: Path) -> None:
        """Writes the features into `folder`; those that are there already are replaced in one step."""
        tensors = {"R": self.T_world_cam.R, "t": self.T_world_cam.t, "place": self.place}
        tensors["descriptors"] = self.descriptors.cpu()
        for size_hw, stored in self.stored_by_size.items():
            for kind, group in (("part", stored.parts), ("step", stored.steps or ())):
                tensors |= {_tensor_name(size_hw, kind, i): tensor.cpu() for i, tensor in enumerate(group)}
        told = {
            "names": self.names,
            "cameras": [_camera_to_dict(camera) for camera in self.cameras],
            "sizes": [asdict(size) for size in self.sizes],
            "network_sha256": self.network_sha256,
            "precision": self.precision,
        }
        partial = folder / f"{FILE}.partial-{token_hex(4)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, partial, metadata={"format": FORMAT, "map": json.dumps(told)})
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(folder / FILE)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise DatasetError(
                f"{folder}: expected to save map features here, found: {error}. Check the rights and the free space, "
                "or choose another place."
            ) from error

    @staticmethod
    def load(folder: Path, device: torch.device | str = "cpu") -> "MapFeatures":
        """The features in `folder`, with those of photos left in the file until they are asked for."""
        path = folder / FILE
        if not path.is_file():
            raise DatasetError(f"{folder}: expected map features, found no {FILE}. Check the path, or make the map.")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError(f"it does not say {FORMAT!r}")
                told = json.loads(metadata["map"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            return _from_file(told, tensors)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path}: expected map features, found a file that is damaged or none of ours: {error}. "
                "Make the map again."
            ) from error

    def require(self, network: LoadedMatchGNN) -> None:
        """Raises unless these features are that network's own."""
        if self.network_sha256 != network.sha256:
            raise CheckpointError(
                f"expected map features of these weights ({network.sha256[:12]}), found those of others "
                f"({self.network_sha256[:12]}). Make the map again, or give the weights that it was made with."
            )


def _batches_of_one_size(
    photos: Sequence[PosedPhoto], sizes: list[WorkingSize]
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Rows and pixels of photos of one size, a few at a time; the sizes of all are appended in their order."""
    waiting: dict[tuple[int, int], tuple[list[int], list[Tensor]]] = {}
    for row, photo in enumerate(photos):
        pixels = photo.read_image()
        size = WorkingSize.of(pixels.shape[1], pixels.shape[0])
        if photo.camera is not None:
            size.camera(photo.camera)  # raises now rather than when it is first matched
        sizes.append(size)
        rows, images = waiting.setdefault(size.size_hw, ([], []))
        rows.append(row)
        images.append(torch.from_numpy(size.pixels(pixels)))
        if len(rows) == PHOTOS_AT_ONCE:
            yield waiting.pop(size.size_hw)
    yield from waiting.values()


# The file


def _tensor_name(size_hw: tuple[int, int], kind: str, part: int) -> str:
    return f"{size_hw[0]}x{size_hw[1]}.{kind}.{part}"


def _camera_to_dict(camera: AnyCamera) -> dict[str, object] | None:
    return None if camera is None else {"known": isinstance(camera, Camera), **asdict(camera)}


def _camera_from_dict(values: dict[str, Any] | None) -> AnyCamera:
    if values is None:
        return None
    is_known, values = values["known"], {name: value for name, value in values.items() if name != "known"}
    return Camera(**{**values, "distortion": tuple(values["distortion"])}) if is_known else UnknownFocal(**values)


def _from_file(told: dict[str, Any], tensors: dict[str, Tensor]) -> MapFeatures:
    def levels(size_hw: tuple[int, int], kind: str) -> tuple[Tensor, ...]:
        return tuple(tensors[_tensor_name(size_hw, kind, part)] for part in range(NUM_LEVELS))

    precision: Precision = told["precision"]
    sizes = tuple(WorkingSize(**{**size, "size_hw": tuple(size["size_hw"])}) for size in told["sizes"])
    stored_by_size = {
        size_hw: StoredFeatures(levels(size_hw, "part"), levels(size_hw, "step") if precision == "int8" else None)
        for size_hw in dict.fromkeys(size.size_hw for size in sizes)
    }
    return MapFeatures(
        names=tuple(told["names"]),
        T_world_cam=Pose(tensors["R"].cpu(), tensors["t"].cpu()),
        cameras=tuple(_camera_from_dict(camera) for camera in told["cameras"]),
        sizes=sizes,
        descriptors=tensors["descriptors"],
        stored_by_size=stored_by_size,
        place=tensors["place"].cpu(),
        network_sha256=told["network_sha256"],
        precision=precision,
    )
