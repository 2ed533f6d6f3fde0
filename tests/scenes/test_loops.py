"""Photos of one place are found by their descriptors, whatever lies between them in the walk."""

import numpy as np

from relograph.scenes.loops import pairs_alike


def photos_of(places: list[int], rng: np.random.Generator, *, per_photo: int = 150) -> list[np.ndarray]:
    """Descriptors of photos that each show one of several places: its own points with noise, and clutter."""
    points = rng.integers(0, 160, (max(places) + 1, 200, 128))
    photos = []
    for place in places:
        seen = points[place, rng.permutation(200)[:per_photo]] + rng.integers(-12, 13, (per_photo, 128))
        photos.append(np.clip(np.concatenate([seen, rng.integers(0, 160, (60, 128))]), 0, 255).astype(np.uint8))
    return photos


def test_a_walk_that_returns_is_paired_with_its_beginning():
    places = [*range(12), 0, 1, 2]
    pairs = pairs_alike(photos_of(places, np.random.default_rng(0)), 1, min_apart=3)
    assert {(0, 12), (1, 13), (2, 14)} <= set(pairs)
    assert pairs == sorted(set(pairs))
    assert all(a < b for a, b in pairs)


def test_neighbours_are_left_out():
    pairs = pairs_alike(photos_of([0] * 6, np.random.default_rng(0)), 2, min_apart=3)
    assert pairs
    assert min(b - a for a, b in pairs) == 3


def test_photos_without_descriptors_are_paired_with_none():
    nothing = np.zeros((0, 128), dtype=np.uint8)
    some = photos_of([0, 0], np.random.default_rng(0))
    assert pairs_alike([*some, nothing, nothing], 3, min_apart=1) == [(0, 1)]
    assert pairs_alike([nothing, nothing], 3, min_apart=1) == []
