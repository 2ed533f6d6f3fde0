"""Answers by hand, for what comes after a Localizer."""

import torch

from relograph.geometry import Pose
from relograph.localization.answer_files import NamedAnswer
from relograph.localization.localizer import Answer, UsedReference

# The camera of docs/conventions.md: at (1, 2, 3), looking along the world's x axis, whose z axis is up.
T_WORLD_CAM = Pose.from_matrix([[0, 0, 1, 1], [-1, 0, 0, 2], [0, -1, 0, 3], [0, 0, 0, 1]])
QUAT_WXYZ = [0.5, -0.5, 0.5, -0.5]
VARIANCES = torch.tensor([1e-4, 1e-4, 4e-4, 0.01, 0.04, 0.01], dtype=torch.float64)


def localized(T_world_cam: Pose = T_WORLD_CAM, **changes) -> Answer:
    values = {
        "T_world_cam": T_world_cam,
        "localized": True,
        "confidence": 0.9,
        "reason": "",
        "covariance": torch.diag(VARIANCES),
        "scale_observable": True,
        "num_inliers": 120,
        "focal_px": 500.0,
        "references": (UsedReference(3, "seq-01/a.png", 0.8, 0.6, 200, 120),),
        "seconds": {"encode": 0.04, "match": 0.1},
    }
    return Answer(**{**values, **changes})


def refused(reason: str = "Not sure enough.") -> Answer:
    return Answer(None, False, 0.2, reason)


def named(name: str = "a.jpg", **changes) -> NamedAnswer:
    return NamedAnswer(name, localized(), size_wh=(640, 480), **changes)
