"""Photos that show the same place though a walk has long gone on: where it crosses its own path, or ends as it began.

No vocabulary comes from elsewhere. The SIFT descriptors of the photos themselves are grouped into words, and a photo is
told by how its descriptors lie about each word, added up (VLAD). Photos that are alike so are worth matching.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, UInt8

NUM_WORDS = 64
NUM_SAMPLED = 20_000
"""Descriptors that the words are made of."""
NUM_ROUNDS = 8
"""Of k-means."""


def pairs_alike(
    descriptors: Sequence[UInt8[np.ndarray, "_ 128"]], num_alike: int, *, min_apart: int, seed: int = 0
) -> list[tuple[int, int]]:
    """For each photo the `num_alike` others that look most like it, as pairs; neighbours in the walk are left out.

    Photos are numbered in the order of the walk; those fewer than `min_apart` photos away are neighbours.
    """
    vlad = _vlad(descriptors, seed)
    similarity = vlad @ vlad.T  # [N, N]
    number = np.arange(len(vlad))
    is_empty = np.array([not len(some) for some in descriptors])
    similarity[(np.abs(number[:, None] - number) < min_apart) | is_empty[:, None] | is_empty] = -np.inf
    most = np.argsort(-similarity, axis=1, kind="stable")[:, :num_alike]
    found = {
        (min(a, b), max(a, b)) for a, others in enumerate(most.tolist()) for b in others if similarity[a, b] > -np.inf
    }
    return sorted(found)


def _vlad(descriptors: Sequence[UInt8[np.ndarray, "_ 128"]], seed: int) -> Float32[np.ndarray, "N D"]:
    """A vector of length 1 for each photo; zeros where a photo has no descriptors."""
    rng = np.random.default_rng(seed)
    roots = [_root(some) for some in descriptors]
    sizes = np.array([len(some) for some in roots])
    share = min(1.0, NUM_SAMPLED / max(int(sizes.sum()), 1))
    words = _words(np.concatenate([some[rng.random(len(some)) < share] for some in roots]), rng)
    vlad = np.zeros((len(roots), len(words), 128), dtype=np.float32)
    for photo, some in zip(vlad, roots, strict=True):
        total, count = _added_up(some, words)
        photo += total - count[:, None] * words
        photo[:] = _unit(photo)  # else a wall of bricks, a word seen a hundred times, would outweigh the rest
    return _unit(vlad.reshape(len(roots), -1))


def _unit(rows: Float32[np.ndarray, "n D"]) -> Float32[np.ndarray, "n D"]:
    unit: Float32[np.ndarray, "n D"] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _root(descriptors: UInt8[np.ndarray, "n 128"]) -> Float32[np.ndarray, "n 128"]:
    """Square roots of shares: their distances are Hellinger's, which fit histograms."""
    values = descriptors.astype(np.float32)
    roots: Float32[np.ndarray, "n 128"] = np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-12))
    return roots


def _words(sample: Float32[np.ndarray, "n 128"], rng: np.random.Generator) -> Float32[np.ndarray, "K 128"]:
    """Centres of groups, by k-means."""
    if not len(sample):
        return np.zeros((1, 128), dtype=np.float32)
    words = sample[rng.permutation(len(sample))[:NUM_WORDS]]
    for _ in range(NUM_ROUNDS):
        total, count = _added_up(sample, words)
        words = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], words)
    return words


def _added_up(
    values: Float32[np.ndarray, "n 128"], words: Float32[np.ndarray, "K 128"]
) -> tuple[Float32[np.ndarray, "K 128"], Float32[np.ndarray, "K"]]:
    """The sum of the values that are nearest to each word, and how many they are."""
    distance = (words**2).sum(axis=1) - 2 * values @ words.T  # but for what is the same for all words
    is_nearest = np.zeros((len(values), len(words)), dtype=np.float32)
    is_nearest[np.arange(len(values)), distance.argmin(axis=1)] = 1.0
    return is_nearest.T @ values, is_nearest.sum(axis=0)
