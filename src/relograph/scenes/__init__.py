"""Places on disk: posed photos in the formats that people have."""

from relograph.scenes.converting import convert
from relograph.scenes.fingerprint import scene_fingerprint
from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.image_cache import cached_images, size_of_height
from relograph.scenes.inspection import Problem, SceneInfo, SequenceInfo, check_scene, scene_info
from relograph.scenes.opening import open_scene, open_scenes
from relograph.scenes.scene import Scene

__all__ = [
    "DepthSource",
    "FileSource",
    "Frame",
    "Problem",
    "Scene",
    "SceneInfo",
    "SequenceInfo",
    "cached_images",
    "check_scene",
    "convert",
    "open_scene",
    "open_scenes",
    "scene_fingerprint",
    "scene_info",
    "size_of_height",
]
