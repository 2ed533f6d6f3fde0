"""Places in which everything is known beforehand."""

import numpy as np
import torch

import painted_box
from relograph.evaluation.place import Place, PosedPhotos
from relograph.geometry import Camera, Pose
from relograph.localization.localizer import Answer


def photos(names: str, x_m: list[float], *, camera: Camera | None = None, brightness: int = 100) -> PosedPhotos:
    """Grey photos on a line along x, all looking the same way."""
    centres = torch.tensor([[x, 0.0, 0.0] for x in x_m], dtype=torch.float64).reshape(-1, 3)
    return PosedPhotos(
        tuple(f"{names}-{number}" for number in range(len(x_m))),
        Pose(torch.eye(3, dtype=torch.float64).expand(len(x_m), 3, 3), centres),
        (camera or Camera.from_focal(32, 24, 30.0),) * len(x_m),
        lambda row: np.full((24, 32, 3), brightness + row, dtype=np.uint8),
    )


def place_on_a_line(map_x: list[float], query_x: list[float], name: str = "corridor") -> Place:
    return Place(name, photos("map", map_x), photos("query", query_x, brightness=200), "f" * 64)


def painted_place(num_map: int = 6, num_queries: int = 2) -> Place:
    """The painted cube: photos in which points can be matched."""
    walls = painted_box.painting(0)

    def taken(kind: str, T_world_cam: Pose) -> PosedPhotos:
        pixels = [painted_box.photo(walls, pose) for pose in T_world_cam]
        names = tuple(f"{kind}-{number}" for number in range(len(pixels)))
        return PosedPhotos(names, T_world_cam, (painted_box.CAMERA,) * len(pixels), pixels.__getitem__)

    mapped, asked = painted_box.poses(1, num_map, 0.2, 0.08), painted_box.poses(2, num_queries, 0.1, 0.05)
    return Place("cube", taken("map", mapped), taken("query", asked), "c" * 64)


def answer(
    x_m: float | None, confidence: float, *, solved: bool = True, signs: dict[str, float] | None = None
) -> Answer:
    """An answer on the line, or one without a pose."""
    pose = None
    if x_m is not None:
        pose = Pose(torch.eye(3, dtype=torch.float64), torch.tensor([x_m, 0.0, 0.0], dtype=torch.float64))
    return Answer(
        T_world_cam=pose if confidence >= 0.5 else None,
        localized=pose is not None and confidence >= 0.5,
        confidence=confidence,
        reason="" if confidence >= 0.5 else "not sure enough",
        T_regressed=pose,
        T_solved=pose if solved else None,
        signs=signs or {},
        seconds={"encode": 0.1, "retrieve": 0.01, "match": 0.2, "solve": 0.05},
    )
