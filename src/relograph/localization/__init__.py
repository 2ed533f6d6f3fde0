"""From a network's answers to poses."""

from relograph.localization.from_edges import EdgeReading, query_pose
from relograph.localization.interpolation import interpolated_pose

__all__ = ["EdgeReading", "interpolated_pose", "query_pose"]
