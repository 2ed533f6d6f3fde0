"""From scenes on disk to the frames that a network is trained, validated and tested on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.graphs import PosedImages
from relograph.progress import SILENT, Progress
from relograph.rooms import render_more_walks
from relograph.rooms.seven_rooms import RECIPE_FILE
from relograph.scenes import Frame, Scene, cached_images, scene_fingerprint, size_of_height
from relograph.training.config import DataConfig

# More walks are rendered at this height and made smaller: each size of image would be compiled anew on a GPU.
RENDERED_HEIGHT = 256
SHARE_OF_GPU_FOR_IMAGES = 0.6


@dataclass(frozen=True)
class RelocalizationData:
    """Frames of several scenes, and what each of them is for."""

    frames: PosedImages
    is_test: Bool[Tensor, "F"]
    """The test split: queries that no training ever sees."""
    held_out: Bool[Tensor, "F"]
    """Training sequences kept for validation. At test time those on disk are references like all others."""
    fingerprint: str
    """Of the scenes as they are on disk and of the walks rendered beside them."""
    notes: tuple[str, ...] = ()
    """What a user should know about these data."""

    def of_scenes(self, names: Sequence[str]) -> Bool[Tensor, "F"]:
        """The frames of some scenes."""
        unknown = [name for name in names if name not in self.frames.scene_names]
        if unknown:
            raise DatasetError(
                f"expected scenes among {', '.join(self.frames.scene_names)}, got {', '.join(unknown)}. Check --scenes."
            )
        wanted = torch.tensor([name in names for name in self.frames.scene_names], device=self.is_test.device)
        return wanted[self.frames.scene_idx]

    def train_rows(self, names: Sequence[str]) -> Int[Tensor, "R"]:
        """What a network is trained on: all that is neither test nor held out."""
        return (self.of_scenes(names) & ~self.is_test & ~self.held_out).nonzero().squeeze(1)

    def validation_rows(self, names: Sequence[str]) -> Int[Tensor, "R"]:
        """What training is watched with."""
        return (self.of_scenes(names) & self.held_out).nonzero().squeeze(1)

    def test_rows(self, names: Sequence[str]) -> Int[Tensor, "R"]:
        """The queries of an evaluation."""
        return (self.of_scenes(names) & self.is_test).nonzero().squeeze(1)

    def to(self, device: torch.device | str, *, images_too: bool) -> "RelocalizationData":
        """The same data on another device; without `images_too` the images stay where they are."""
        return RelocalizationData(
            self.frames.to(device, images_too=images_too),
            self.is_test.to(device),
            self.held_out.to(device),
            self.fingerprint,
            self.notes,
        )


def load_data(
    scenes: Sequence[Scene],
    config: DataConfig,
    cache: Path,
    *,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> RelocalizationData:
    """All frames of the scenes at the wanted size, decoded once and cached, and the extra walks of a configuration.

    Frames without a split count as training frames: a map that is trained on.
    """
    for scene in scenes:
        if not scene.frames:
            raise DatasetError(f"{scene.root}: expected frames to train on, found none.")
    image_size_hw = size_of_height(scenes[0].frames[0], config.image_height)
    ordered = [(scene, _in_sequences(scene)) for scene in scenes]
    images = cached_images(
        [frame for _, frames in ordered for frame in frames], image_size_hw, cache, progress=progress
    )
    on_disk = _as_posed_images(ordered, images)
    is_test = torch.tensor([frame.split == "test" for _, frames in ordered for frame in frames])
    on_disk = PosedImages(**{**vars(on_disk), "in_map": ~is_test})
    fingerprint = "+".join(_fingerprint(scene)[:16] for scene in scenes)
    parts = [on_disk.to(device, images_too=False)]
    if config.extra_walks:
        fingerprint += f"+{config.extra_walks} walks/{config.extra_every}"
        extra = _extra_walks(scenes, config, image_size_hw, device, progress)
        # Put together they are there twice for a moment.
        num_bytes = 2 * (images.numel() + sum(part.images.numel() for part in extra))
        where = device if has_room_for(num_bytes, torch.device(device)) else "cpu"
        parts = [replace(part, images=part.images.to(where)) for part in (*parts, *extra)]
    frames = PosedImages.cat(parts)
    is_test = torch.cat([is_test.to(device), torch.zeros(len(frames) - len(is_test), dtype=torch.bool, device=device)])
    held_out, notes = _hold_out(frames, is_test, config.holdout_share)
    return RelocalizationData(frames, is_test, held_out, fingerprint, notes)


def _fingerprint(scene: Scene) -> str:
    """Of a room by what it was made from: made again elsewhere, on another device, it is the same but for rounding."""
    recipe = scene.root / RECIPE_FILE
    if not recipe.is_file():
        return scene_fingerprint(scene)
    frames = [(frame.name, frame.split) for frame in scene]
    digest = hashlib.sha256(recipe.read_bytes() + json.dumps(frames).encode())
    digest.update((scene.T_world_cam.matrix() * 1e4).round().long().contiguous().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def has_room_for(num_bytes: int, device: torch.device) -> bool:
    """Whether images may lie on a GPU beside a training; on a CPU they stay where they are."""
    return device.type == "cuda" and num_bytes < SHARE_OF_GPU_FOR_IMAGES * torch.cuda.mem_get_info(device)[0]


def _in_sequences(scene: Scene) -> list[Frame]:
    """The frames of a scene, those of a sequence together and in order, those of none at the end."""
    in_a_sequence = [frame for sequence in scene.sequences.values() for frame in sequence]
    return in_a_sequence + [frame for frame in scene if frame.sequence is None]


def _as_posed_images(ordered: Sequence[tuple[Scene, list[Frame]]], images: UInt8[Tensor, "F H W 3"]) -> PosedImages:
    names, scene_idx, sequence_idx = [], [], []
    number_of: dict[tuple[str, str | None], int] = {}
    for scene_number, (scene, frames) in enumerate(ordered):
        for frame in frames:
            names.append(f"{scene.name}/{frame.name}")
            scene_idx.append(scene_number)
            sequence_idx.append(number_of.setdefault((scene.name, frame.sequence), len(number_of)))
    return PosedImages(
        images=images,
        T_world_cam=Pose.stack([frame.T_world_cam for _, frames in ordered for frame in frames]).to(torch.float32),
        scene_idx=torch.tensor(scene_idx),
        sequence_idx=torch.tensor(sequence_idx),
        in_map=torch.ones(len(names), dtype=torch.bool),
        names=tuple(names),
        scene_names=tuple(scene.name for scene, _ in ordered),
    )


def _extra_walks(
    scenes: Sequence[Scene],
    config: DataConfig,
    image_size_hw: tuple[int, int],
    device: torch.device | str,
    progress: Progress,
) -> list[PosedImages]:
    height, width = image_size_hw
    rendered_hw = (
        (RENDERED_HEIGHT, round(width * RENDERED_HEIGHT / height)) if height < RENDERED_HEIGHT else image_size_hw
    )
    if torch.device(device).type == "cpu":
        rendered_hw = image_size_hw  # nothing is compiled here, and pixels are dear
    views = render_more_walks(
        [scene.root for scene in scenes],
        num_walks=config.extra_walks,
        every=config.extra_every,
        image_size_hw=rendered_hw,
        device=device,
        progress=progress,
    )
    parts = []
    for scene, more in zip(scenes, views, strict=True):
        walk_idx = more.walk_idx.to(device)
        frame_in_walk = torch.arange(len(walk_idx)) % max(1, len(walk_idx) // config.extra_walks)
        parts.append(
            PosedImages(
                images=_resized(more.images, image_size_hw),
                T_world_cam=more.T_world_cam.to(torch.float32).to(device=torch.device(device)),
                scene_idx=torch.zeros_like(walk_idx),
                sequence_idx=walk_idx,
                in_map=torch.zeros(len(walk_idx), dtype=torch.bool, device=device),
                names=tuple(
                    f"{scene.name}/extra-{walk:02d}/view-{frame:04d}"
                    for walk, frame in zip(more.walk_idx.tolist(), frame_in_walk.tolist(), strict=True)
                ),
                scene_names=(scene.name,),
            )
        )
    return parts


def _resized(images: UInt8[Tensor, "F H W 3"], image_size_hw: tuple[int, int]) -> UInt8[Tensor, "F h w 3"]:
    if images.shape[1:3] == image_size_hw:
        return images
    smaller = []
    for some in images.split(1024):
        pixels = some.permute(0, 3, 1, 2).float()
        pixels = F.interpolate(pixels, size=image_size_hw, mode="bilinear", antialias=True, align_corners=False)
        smaller.append(pixels.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(smaller)


def _hold_out(
    frames: PosedImages, is_test: Bool[Tensor, "F"], share: float
) -> tuple[Bool[Tensor, "F"], tuple[str, ...]]:
    """Of every scene its last training sequence, or the end of the only one; never a test sequence.

    Where walks were rendered, the last of them is held out, so that every frame of the map is trained on.
    """
    held_out = torch.zeros_like(is_test)
    notes = []
    for scene, name in enumerate(frames.scene_names):
        rows = ((frames.scene_idx == scene) & ~is_test).nonzero().squeeze(1)
        sequences = frames.sequence_idx[rows]
        if len(rows) < 2:
            notes.append(f"{name} has {len(rows)} training frame: nothing of it can be held out for validation")
        elif len(sequences.unique()) > 1:
            held_out[rows[sequences == sequences.max()]] = True
        else:
            held_out[rows[-min(max(1, round(share * len(rows))), len(rows) - 1) :]] = True
            notes.append(f"{name} has one training sequence: its last frames are held out for validation")
    return held_out, tuple(notes)
