"""What is known of a camera of which nobody wrote down the focal length, and what is found of its lens."""

from dataclasses import dataclass
from math import inf

import numpy as np
from jaxtyping import Float64

from relograph.errors import GeometryError
from relograph.geometry import Camera
from relograph.models.match_gnn import LIKELY_FOCAL

SHORTEST, LONGEST = 0.5, 1.6
"""Focal lengths that are searched, in units of the image's longer side: fields of view from 90 to 35 degrees."""
NUM_TRIED = 9
LOG_FOCAL_SIGMA = 0.4
"""Before any match is seen, a focal length is the likely one within a factor of 1.5."""
EXIF_LOG_SIGMA = 0.05
"""Of the focal length in a photo's EXIF: it is in whole millimetres, over a diagonal that was cut or not."""


@dataclass(frozen=True)
class UnknownFocal:
    """A camera with square pixels that looks through the middle of its image, of unknown focal length.

    Cameras of one `group` have the same focal length in units of their image's longer side, as photos by one phone do,
    at whatever size they were kept, and the same is expected of it.
    """

    width: int
    height: int
    group: int = 0
    likely: float = LIKELY_FOCAL
    """The focal length that is expected, in the same units."""
    log_sigma: float = LOG_FOCAL_SIGMA
    """How sure that is: the standard deviation of the focal length's log."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise GeometryError(
                f"An image has at least one pixel a side, found {self.width}x{self.height}. Check width and height."
            )
        if not (0 < self.likely < inf and 0 < self.log_sigma < inf):
            raise GeometryError(
                f"A focal length is expected to be a positive number of longer sides, within a positive share of it, "
                f"found {self.likely} and {self.log_sigma}. Leave them out where nothing is expected."
            )

    @property
    def longer_side(self) -> int:
        return max(self.width, self.height)

    @property
    def is_expected(self) -> bool:
        """Whether its focal length is, by more than what all lenses are like."""
        return self.log_sigma < LOG_FOCAL_SIGMA

    def at(self, relative_focal: float) -> Camera:
        """The camera with that focal length in units of the longer side.

        Example:
            >>> UnknownFocal(640, 480).at(0.82).fx
            524.8
        """
        return Camera.from_focal(self.width, self.height, self.longer_side * relative_focal)


@dataclass(frozen=True)
class FoundLens:
    """A lens that was not known, as matches have it."""

    focal: float
    """In units of the image's longer side."""
    bend: float = 0.0
    """A pixel's ray is y = p (1 + bend |p|^2) where without the bend it would be p: k1 is about -bend."""


def tried_log_focals() -> Float64[np.ndarray, "tried"]:
    """The focal lengths of a search, log-spaced, as logs of units of the longer side."""
    return np.linspace(np.log(SHORTEST), np.log(LONGEST), NUM_TRIED)
