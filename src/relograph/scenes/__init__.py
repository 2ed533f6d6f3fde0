"""Places on disk: posed photos in the formats that people have."""

from relograph.scenes.frame import DepthSource, FileSource, Frame
from relograph.scenes.scene import Scene

__all__ = ["DepthSource", "FileSource", "Frame", "Scene"]
