"""The data that a run was evaluated on, where a user has them at hand: photos and poses by the names of predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from relograph.errors import DatasetError
from relograph.evaluation.place import Place, PosedPhotos
from relograph.evaluation.predictions import NearestReference, Predictions
from relograph.geometry import Pose
from relograph.scenes import Frame, Scene, open_scenes


@dataclass(frozen=True)
class PosedData:
    """Scenes of a folder."""

    scenes: Sequence[Scene]

    @staticmethod
    def open(root: Path) -> "PosedData":
        return PosedData(open_scenes(root))

    @cached_property
    def frame_by_name(self) -> dict[str, Frame]:
        """Frames as a training calls them, SCENE/FRAME, and as a comparison in one place does."""
        named = {f"{scene.name}/{frame.name}": frame for scene in self.scenes for frame in scene}
        return named | ({frame.name: frame for frame in self.scenes[0]} if len(self.scenes) == 1 else {})

    def require(self, names: Sequence[str], where: Path) -> None:
        """Raises where these are other data."""
        missing = [name for name in names if name not in self.frame_by_name]
        if missing:
            raise DatasetError(
                f"{where}: expected --data with the frames that were localized, found no {missing[0]!r} among "
                f"{', '.join(scene.name for scene in self.scenes)}. Give the data of the evaluation."
            )

    def map_of(self, predictions: Predictions) -> list[Frame]:
        """Photos of one scene that are no queries, nor of the test split."""
        queries = {id(self.frame_by_name[name]) for name in predictions.frame}
        (scene,) = [scene for scene in self.scenes if any(id(frame) in queries for frame in scene)]
        return [frame for frame in scene if frame.split != "test" and id(frame) not in queries]

    def copied(self, predictions: Predictions) -> Predictions:
        """What copying the pose of the most similar reference would have answered."""
        nowhere = Pose(torch.full((3, 3), torch.nan, dtype=torch.float64), torch.full((3,), torch.nan).double())
        poses = [
            self.frame_by_name[name].T_world_cam if name in self.frame_by_name else nowhere for name in predictions.top1
        ]
        return Predictions.from_poses(
            predictions.scene,
            predictions.frame,
            predictions.T_world_true,
            Pose.stack(poses) if poses else Pose.identity(0),
            top1=predictions.top1,
            nearest=NearestReference(predictions.nearest_reference_m, predictions.nearest_reference_deg),
            reason=["" if name in self.frame_by_name else "there was no reference" for name in predictions.top1],
        )

    def place_of(self, predictions: Predictions) -> tuple[Place, Int[Tensor, "Q 1"]]:
        """The queries of one scene, in the order of the predictions, and of each the row of its first reference."""
        frames = [self.frame_by_name[name] for name in predictions.frame]
        references = list(dict.fromkeys(name for name in predictions.top1 if name in self.frame_by_name))
        row_by_name = {name: row for row, name in enumerate(references)}
        rows = [[row_by_name.get(name, -1)] for name in predictions.top1]
        in_map = [self.frame_by_name[name] for name in references]
        place = Place(predictions.scenes[0], _photos(references, in_map), _photos(predictions.frame, frames), "")
        return place, torch.tensor(rows, dtype=torch.int64).reshape(-1, 1)


def _photos(names: Sequence[str], frames: Sequence[Frame]) -> PosedPhotos:
    poses = Pose.stack([frame.T_world_cam for frame in frames]) if frames else Pose.identity(0)
    # Without cameras, as no pose is solved for here.
    return PosedPhotos(tuple(names), poses, (), lambda row: frames[row].read_image())
