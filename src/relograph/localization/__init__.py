"""From what networks say about edges and matches to the pose of a query."""

from relograph.localization.focal import UnknownFocal
from relograph.localization.from_edges import EdgeReading, query_pose
from relograph.localization.interpolation import interpolated_pose
from relograph.localization.localizer import Answer, Localizer
from relograph.localization.map_features import MapFeatures
from relograph.localization.solver import MatchedPoints, SolverAnswer, solve_query_pose
from relograph.localization.spread import choose_spread_references

__all__ = [
    "Answer",
    "EdgeReading",
    "Localizer",
    "MapFeatures",
    "MatchedPoints",
    "SolverAnswer",
    "UnknownFocal",
    "choose_spread_references",
    "interpolated_pose",
    "query_pose",
    "solve_query_pose",
]
