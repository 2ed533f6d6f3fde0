"""Places and answers in 3-D, to look at."""

from relograph.viewer.cameras_page import CameraGroup, write_cameras_page

__all__ = ["CameraGroup", "write_cameras_page"]
