"""What photos can be localized in: a map on disk, or posed photos whose features are computed now and forgotten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from relograph.errors import ConfigError, DatasetError
from relograph.localization.map_features import MapFeatures
from relograph.localization.map_view import MapView
from relograph.maps.map import Map
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.retrieval import stored_index
from relograph.scenes.frame import Frame
from relograph.scenes.images import decode_image
from relograph.scenes.opening import open_scene
from relograph.scenes.reconstruction_file import UNKNOWN_SCALE


@dataclass(frozen=True)
class MapToAsk:
    """Features to localize in, with the photos behind them."""

    features: MapView
    network: LoadedMatchGNN
    photo_of: Callable[[int], UInt8[np.ndarray, "H W 3"] | None]
    """The photo of a row."""
    scale_is_known: bool
    warnings: tuple[str, ...] = ()


def open_map_to_ask(
    map_at: str | None,
    scene_root: Path | None,
    queries: Sequence[Path],
    network: LoadedMatchGNN,
    device: str = "cpu",
    *,
    progress: Progress = SILENT,
) -> MapToAsk:
    """The map, or the scene's photos but for the queries themselves: those of its training split, where it has one."""
    if (map_at is None) == (scene_root is None):
        raise ConfigError("expected --map MAP or --scene ROOT to localize in, got neither or both. Give one of them.")
    network = replace(network, model=network.model.to(torch.device(device)))
    if map_at is not None:
        return _of_map(map_at, network)
    assert scene_root is not None
    scene = open_scene(scene_root)
    asked_for = {path.resolve() for path in queries}
    frames = [frame for frame in (scene.train if len(scene.train) else scene) if not _is_within(frame, asked_for)]
    if not frames:
        raise DatasetError(f"{scene.root}: expected photos beside the queries, found none. Localize in another scene.")
    features = MapFeatures.of(frames, network, progress=progress)
    warnings = (*scene.warnings, *_about_weights(network))
    return MapToAsk(features, network, lambda row: frames[row].read_image(), scene.scale_is_known, warnings)


def _is_within(frame: Frame, places: set[Path]) -> bool:
    """Whether a frame's photo is one of these files, or in one of these folders."""
    path = frame.image.path.resolve()
    return frame.image.member is None and not places.isdisjoint((path, *path.parents))


def _of_map(where: str, network: LoadedMatchGNN) -> MapToAsk:
    opened = Map.open(where, network=network)
    scale_is_known = opened.settings.scale_is_known
    features = opened.features
    return MapToAsk(
        features,
        network,
        lambda row: decode_image(opened.jpeg(opened.frames[row]), opened.frames[row].name),
        scale_is_known,
        (*(() if scale_is_known else (UNKNOWN_SCALE,)), *_about_index(opened), *_about_weights(network)),
    )


def _about_index(opened: Map) -> tuple[str, ...]:
    if len(opened) <= stored_index.EXACT_UP_TO or opened.features.finder is not None:
        return ()
    return (
        f"A query is compared with all of {len(opened):,} photos, as FAISS is missing: pip install 'relograph[index]'.",
    )


def _about_weights(network: LoadedMatchGNN) -> tuple[str, ...]:
    return () if network.calibration else ("These weights are not calibrated: how sure answers are is a guess.",)
