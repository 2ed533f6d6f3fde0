"""Places on disk: posed photos in the formats that people have."""

from relograph.scenes.converting import convert
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.inspection import Problem, SceneInfo, SequenceInfo, check_scene, scene_info
from relograph.scenes.opening import open_scene
from relograph.scenes.scene import Scene

__all__ = [
    "DepthSource",
    "FileSource",
    "Frame",
    "Problem",
    "Scene",
    "SceneInfo",
    "SequenceInfo",
    "check_scene",
    "convert",
    "open_scene",
    "scene_info",
]
