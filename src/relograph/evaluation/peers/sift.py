"""SIFT with OpenCV: what one had before networks, and still hard to beat where photos are sharp."""

from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from relograph.errors import MissingExtraError
from relograph.evaluation.peers.protocol import MIDDLE_OF_PIXEL, Xy

NUM_FEATURES = 2000
RATIO = 0.8
"""A match counts if the second best is at least this much worse (Lowe 2004)."""

SiftFeatures = tuple[Float32[np.ndarray, "_ 2"], Float32[np.ndarray, "_ 128"]]


class Sift:
    """2000 SIFT features, mutual nearest neighbours that pass the ratio test."""

    def __init__(self) -> None:
        try:
            import cv2
        except ImportError:
            raise MissingExtraError("opencv-python-headless", "geometry", "Matching SIFT features") from None
        self._cv2: Any = cv2  # its types leave SIFT out
        self._sift = self._cv2.SIFT_create(nfeatures=NUM_FEATURES)
        self._matcher = self._cv2.BFMatcher(self._cv2.NORM_L2)

    def features(self, image: UInt8[np.ndarray, "H W 3"]) -> SiftFeatures:
        """Points, to which the middle of the first pixel is (0, 0), and what they look like."""
        found, descriptors = self._sift.detectAndCompute(self._cv2.cvtColor(image, self._cv2.COLOR_RGB2GRAY), None)
        if descriptors is None:
            return np.zeros((0, 2), dtype=np.float32), np.zeros((0, 128), dtype=np.float32)
        # OpenCV gives a few more than it is asked for where the last ones are equally strong.
        xy = np.array([point.pt for point in found[:NUM_FEATURES]], dtype=np.float32)
        return xy, descriptors[:NUM_FEATURES]

    def match(self, query: SiftFeatures, ref: SiftFeatures) -> tuple[Xy, Xy]:
        """Points of both that are each other's nearest, and clearly so."""
        (query_xy, of_query), (ref_xy, of_ref) = query, ref
        if len(of_query) < 2 or len(of_ref) < 2:
            return np.zeros((0, 2)), np.zeros((0, 2))
        clear = self._clear(of_query, of_ref)
        back = self._clear(of_ref, of_query)
        pairs = np.array([(i, j) for i, j in clear.items() if back.get(j) == i], dtype=np.int64).reshape(-1, 2)
        return query_xy[pairs[:, 0]] + MIDDLE_OF_PIXEL, ref_xy[pairs[:, 1]] + MIDDLE_OF_PIXEL

    def _clear(self, a: Float32[np.ndarray, "N 128"], b: Float32[np.ndarray, "M 128"]) -> dict[int, int]:
        return {
            best.queryIdx: best.trainIdx
            for best, second in self._matcher.knnMatch(a, b, k=2)
            if best.distance < RATIO * second.distance
        }
