"""Retrieval that a user brings along: a list of pairs, or descriptors of another network.

Both name images as the scenes do, for example `chess/seq-01/frame-000000.color.png`.
"""

import difflib
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int
from torch import Tensor

from relograph.errors import DatasetError
from relograph.scenes.names import parse_float, read_text, reading

_HOW_TO_WRITE = "Write it with np.savez(path, names=names, descriptors=descriptors), or as a safetensors file."


def read_pairs(
    path: Path,
    names: Sequence[str],
    *,
    database: Bool[Tensor, "F"] | None = None,
    scene_idx: Int[Tensor, "F"] | None = None,
) -> Int[Tensor, "F L"]:
    """Each image's references in a list of pairs, as rows of `names`, best first; -1 where there are no more.

    A line is `query reference`, as hloc writes them, or `query reference score`: references stand in the order of the
    lines, or of falling scores. Names with spaces are separated by tabs. Empty lines and lines with # are left out. An
    image without a line has no references.

    Args:
        database: Which rows are in the map; another one as a reference is an error.
        scene_idx: Each row's scene; a reference from another scene than its query's is an error.
    """
    row_by_name = {name: row for row, name in enumerate(names)}
    in_map = None if database is None else database.tolist()
    scenes = None if scene_idx is None else scene_idx.tolist()
    score_by_reference: dict[int, dict[int, float]] = defaultdict(dict)  # of each query
    num_cells = None
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}:{number}"
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        num_cells = num_cells or len(cells)
        if len(cells) not in (2, 3) or len(cells) != num_cells:
            raise DatasetError(
                f"{where}: expected 'query reference', or 'query reference score' in all lines, found {len(cells)} "
                "cells. Correct the line; names with spaces in them are separated by tabs."
            )
        query, reference = (_row_of(name, row_by_name, where) for name in cells[:2])
        reason = None
        if reference == query:
            reason = "the query itself"
        elif reference in score_by_reference[query]:
            reason = "the same pair a second time"
        elif in_map is not None and not in_map[reference]:
            reason = f"{cells[1]!r}, which is not in the map"
        elif scenes is not None and scenes[reference] != scenes[query]:
            reason = f"{cells[1]!r}, which is of another scene"
        if reason is not None:
            raise DatasetError(
                f"{where}: expected another image as reference of {cells[0]!r}, found {reason}. Remove the line."
            )
        score_by_reference[query][reference] = parse_float(cells[2], where) if num_cells == 3 else -float(number)
    if not score_by_reference:
        raise DatasetError(f"{path}: expected lines 'query reference', found none. Check that it is the right file.")
    ranked = torch.full((len(names), max(map(len, score_by_reference.values()))), -1)
    for query, scores in score_by_reference.items():
        ranked[query, : len(scores)] = torch.tensor(sorted(scores, key=scores.__getitem__, reverse=True))
    return ranked


def read_descriptors(path: Path, names: Sequence[str]) -> Float32[Tensor, "F D"]:
    """The descriptor of each of `names`, in that order; the file may hold more.

    Either an `.npz` with the arrays `names` and `descriptors` [F, D], or a `.safetensors` with one tensor [D] for each
    image, called as the image is. Their length means nothing: they are compared by cosine.
    """
    where = str(path)
    parse = {".npz": _from_npz, ".safetensors": _from_safetensors}.get(path.suffix)
    if parse is None:
        raise DatasetError(f"{where}: expected a .npz or .safetensors file, found {path.suffix!r}. {_HOW_TO_WRITE}")
    with reading(path):
        data = path.read_bytes()
    descriptor_by_name = parse(data, where)
    missing = [name for name in names if name not in descriptor_by_name]
    if missing:
        raise DatasetError(
            f"{where}: expected a descriptor of every image, found none of {len(missing)} of {len(names)}, the first "
            f"is {missing[0]!r}.{_nearest(missing[0], descriptor_by_name)} Describe all images, under those names."
        )
    descriptors = [descriptor_by_name[name] for name in names]
    for name, descriptor in zip(names, descriptors, strict=True):
        if descriptor.ndim != 1 or descriptor.shape != descriptors[0].shape:
            raise DatasetError(
                f"{where}: expected one list of numbers an image, all of one length, found the shape "
                f"{list(descriptor.shape)} for {name!r} and {list(descriptors[0].shape)} for {names[0]!r}. "
                "Describe all images with one network."
            )
    stacked = torch.stack(descriptors)
    for fault, what in (
        (~stacked.isfinite().all(dim=1), "NaN or infinity"),
        ((stacked == 0).all(dim=1), "nothing but zeros"),
    ):
        if fault.any():
            raise DatasetError(
                f"{where}: expected finite numbers that are not all zero, found {what} for "
                f"{names[int(fault.int().argmax())]!r}. Describe this image again."
            )
    return stacked


def _from_npz(data: bytes, where: str) -> dict[str, Float32[Tensor, "..."]]:
    with _parsing("an .npz", where), np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in ("names", "descriptors") if key in archive}
    if len(arrays) < 2:
        raise DatasetError(f"{where}: expected the arrays names and descriptors, found not both. {_HOW_TO_WRITE}")
    names, descriptors = arrays["names"], arrays["descriptors"]
    if names.dtype.kind != "U" or names.ndim != 1 or descriptors.ndim != 2 or len(names) != len(descriptors):
        raise DatasetError(
            f"{where}: expected F names and descriptors of shape [F, D], found {names.dtype} names of shape "
            f"{list(names.shape)} and descriptors of shape {list(descriptors.shape)}. {_HOW_TO_WRITE}"
        )
    if descriptors.dtype.kind not in "fiu":
        raise DatasetError(f"{where}: expected numbers, found descriptors of {descriptors.dtype}. {_HOW_TO_WRITE}")
    with np.errstate(over="ignore"):  # what becomes infinite is found later, with its name
        values = torch.from_numpy(descriptors.astype(np.float32))
    descriptor_by_name = dict(zip(names.tolist(), values, strict=True))
    if len(descriptor_by_name) < len(names):
        repeated = next(name for name, count in Counter(names.tolist()).items() if count > 1)
        raise DatasetError(f"{where}: expected every name once, found {repeated!r} more often. Remove the others.")
    return descriptor_by_name


def _from_safetensors(data: bytes, where: str) -> dict[str, Float32[Tensor, "..."]]:
    from safetensors.torch import load

    with _parsing("a .safetensors", where):
        return {name: tensor.float() for name, tensor in load(data).items()}


@contextmanager
def _parsing(kind: str, where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged file trips the libraries in a dozen ways, each with its own exception
        reason = " ".join(str(error).split())[:200]
        raise DatasetError(
            f"{where}: expected {kind} file that is whole, found that it cannot be read ({reason}). Write it again."
        ) from None


def _row_of(name: str, row_by_name: Mapping[str, int], where: str) -> int:
    if name not in row_by_name:
        raise DatasetError(
            f"{where}: expected the name of an image in the data, found {name!r}.{_nearest(name, row_by_name)} "
            "Correct the line, or give the data that the list was made for."
        )
    return row_by_name[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
