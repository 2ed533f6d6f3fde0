"""Networks and maps that are small enough for tests; what they say is random, but it is all there."""

import numpy as np
import torch

from relograph.geometry import Camera, Pose
from relograph.localization.photos import PhotoInMemory
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.training.presets import MATCHGNN_TINY

SMALL = MATCHGNN_TINY.model
CAMERA = Camera.from_focal(160, 120, 130.0)


def small_network(seed: int = 0, sha256: str = "a" * 64, *, finds_matches: bool = True) -> LoadedMatchGNN:
    """Random weights that find many matches; or none that are sure, as random ones do, so that nothing is solved."""
    torch.manual_seed(seed)
    model = MatchGNN(SMALL).eval().requires_grad_(False)
    if finds_matches:
        torch.nn.init.normal_(model.head[3].weight, std=0.2)
        model.matcher.log_temperature.fill_(5.0)
    return LoadedMatchGNN(model, sha256, {})


def noise_photo(seed: int, height: int = 120, width: int = 160) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def posed_photos(count: int, *, spread_m: float = 0.5, camera: Camera | None = CAMERA) -> list[PhotoInMemory]:
    rng = np.random.default_rng(1)
    return [
        PhotoInMemory(
            f"photo-{i}.png",
            noise_photo(i),
            Pose.from_axis_angle(0.1 * rng.normal(size=3), spread_m * rng.normal(size=3)),
            camera,
        )
        for i in range(count)
    ]
