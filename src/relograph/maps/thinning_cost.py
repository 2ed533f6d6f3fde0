"""What thinning a map costs: photos that would go are localized in the map as it is, and as it would be."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relograph.errors import ConfigError
from relograph.geometry import pose_error
from relograph.localization.localizer import Localizer
from relograph.maps.copying import Advance
from relograph.maps.features import ShardedFeatures
from relograph.maps.map import Map
from relograph.maps.records import MapFrame, frame_poses
from relograph.maps.thinning import choose_spread_out
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress

RIGHT_M, RIGHT_DEG = 0.25, 10.0


@dataclass(frozen=True)
class Accuracy:
    """How well photos are localized in a map; those that are not count as endlessly wrong."""

    num_queries: int
    num_right: int
    """Within 25 cm and 10 degrees."""
    median_error_m: float
    median_error_deg: float


@dataclass(frozen=True)
class ThinningCost:
    """The same photos, localized before and after; they are part of neither map."""

    before: Accuracy
    after: Accuracy


def cost_of_thinning(
    some: Map, num_frames: int, network: LoadedMatchGNN, *, num_tried: int = 30, progress: Progress = SILENT
) -> ThinningCost:
    """What `some.compact(num_frames)` would cost, by `num_tried` of the photos that would go."""
    frames = some.frames
    kept = set(choose_spread_out(frame_poses(frames), num_frames).tolist())
    dropped = [row for row in range(len(frames)) if row not in kept]
    if not dropped:
        raise ConfigError(f"expected fewer photos than the map's {len(frames):,} to try what that costs.")
    tried = [dropped[i] for i in np.unique(np.linspace(0, len(dropped) - 1, num_tried).round().astype(int))]
    queries = [frames[row] for row in tried]
    with progress.task("localizing photos that would go", total=2 * len(queries)) as advance:
        before, after = (
            _accuracy(some, [frames[row] for row in rows], queries, network, advance)
            for rows in (sorted(set(range(len(frames))) - set(tried)), sorted(kept))
        )
    return ThinningCost(before, after)


def _accuracy(
    some: Map, references: Sequence[MapFrame], queries: Sequence[MapFrame], network: LoadedMatchGNN, advance: Advance
) -> Accuracy:
    features = ShardedFeatures.read(references, some.settings, some.shards(references), network.model)
    localizer = Localizer(features, network)
    errors_m, errors_deg = np.full(len(queries), np.inf), np.full(len(queries), np.inf)
    for i, frame in enumerate(queries):
        camera = None if frame.camera is None else frame.working_size.camera(frame.camera)
        answer = localizer.localize(some.jpeg(frame), camera=camera)
        if answer.T_world_cam is not None:
            error = pose_error(answer.T_world_cam, frame.T_world_cam)
            errors_m[i], errors_deg[i] = float(error.translation_error_m), float(error.rotation_error_deg)
        advance(1)
    return Accuracy(
        len(queries),
        int(((errors_m <= RIGHT_M) & (errors_deg <= RIGHT_DEG)).sum()),
        float(np.median(errors_m)),
        float(np.median(errors_deg)),
    )
