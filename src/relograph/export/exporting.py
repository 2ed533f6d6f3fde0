"""From weights to ONNX files: the encoder and the matcher, checked against torch before anyone gets to see them.

encoder   images [M, H, W, 3] in uint8 to features at three sizes and the descriptor; H and W are multiples of 16
matcher   features of one query and of 1 to 32 references of one size to where each cell of the query is seen

In int8 the encoder is computed in 8 bits. The matcher stays in float32: matches are decided there, and its weights are
a tenth of the network's. The poses that follow from matches are not exported: they are a small part of the time, and
solved in float64.
"""

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from relograph.errors import CheckpointError, ConfigError, DatasetError, MissingExtraError
from relograph.export.files import (
    ENCODER,
    MATCHER,
    MAX_REFERENCES,
    SIZE_STEP,
    Exported,
    ExportedFile,
    ExportPrecision,
    sha256_of,
)
from relograph.export.quantising import quantise
from relograph.export.running import FEATURES, MATCHES, open_session, run_session
from relograph.models.folding import fold_match_gnn
from relograph.models.match_gnn import DenseEncoder, Descriptor, ImageFeatures, Matcher, MatchGNN
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress

OPSET = 18
TOLERANCE = 1e-3
"""Largest difference to torch, as a share of the largest number, that a file in float32 may have."""
LARGEST_SIZE = 128 * SIZE_STEP
ENCODER_OUTPUTS = (*FEATURES, "descriptor")
MATCHER_INPUTS = tuple(f"{who}_{name}" for who in ("query", "ref") for name in FEATURES)
EXAMPLE_HW, OTHER_HW = (96, 128), (80, 112)
"""Sizes that differ, so that none of them is taken for the other."""
CHECKED_HW = ((96, 128), (160, 96))
CHECKED_REFERENCES = (1, 3, MAX_REFERENCES)


class _Encoder(nn.Module):
    def __init__(self, model: MatchGNN) -> None:
        super().__init__()
        self.encoder: DenseEncoder = model.encoder
        self.descriptor: Descriptor = model.descriptor

    def forward(self, images: UInt8[Tensor, "M H W 3"]) -> tuple[Tensor, ...]:
        features = self.encoder(images)
        return features.context, features.coarse, features.fine, self.descriptor(features.context)


class _Matcher(nn.Module):
    def __init__(self, model: MatchGNN) -> None:
        super().__init__()
        self.matcher: Matcher = model.matcher

    def forward(self, *features: Tensor) -> tuple[Tensor, ...]:
        query, references = ImageFeatures(*features[:3]), ImageFeatures(*features[3:])
        # All references at once, not one after the other: their number is not known yet.
        matches = self.matcher(query, references, references.context.shape[0], keep_log_coarse=True)
        return tuple(getattr(matches, name) for name in MATCHES)


@torch.no_grad()
def export_match_gnn(
    network: LoadedMatchGNN,
    folder: Path,
    *,
    precision: ExportPrecision = "float32",
    photos: UInt8[Tensor, "M H W 3"] | None = None,
    made_by: Mapping[str, object] | None = None,
    progress: Progress = SILENT,
) -> Exported:
    """Writes the network's encoder and matcher into a new `folder`, which appears when all of it is there.

    `photos` are what int8 learns its scales from; they should be of the kind that is asked later.
    """
    if folder.exists():
        raise DatasetError(f"{folder}: expected a folder that is not there yet, found one. Choose another place.")
    if precision == "int8" and photos is None:
        raise ConfigError("int8 learns its scales from photos, got none.")
    model = fold_match_gnn(network.model.cpu(), for_export=True).eval()
    partial = folder.with_name(f"{folder.name}.partial-{token_hex(4)}")
    partial.mkdir(parents=True)
    try:
        with progress.task("exporting", total=4) as advance:
            parts = {ENCODER: _Encoder(model), MATCHER: _Matcher(model)}
            paths = {name: partial / f"{name}.onnx" for name in parts}
            _write_encoder(parts[ENCODER], paths[ENCODER])
            advance(1)
            _write_matcher(parts[MATCHER], model, paths[MATCHER])
            advance(1)
            if precision == "int8":
                assert photos is not None
                quantise(paths[ENCODER], _encoder_examples(photos))
            advance(1)
            exported = Exported(
                weights_sha256=network.sha256,
                precision=precision,
                opset=OPSET,
                encoder=_about(paths[ENCODER], _encoder_differences(parts[ENCODER], paths[ENCODER], photos)),
                matcher=_about(paths[MATCHER], _matcher_differences(parts[MATCHER], model, paths[MATCHER], photos)),
                made_by=dict(made_by or {}),
            )
            advance(1)
        _require_equal(exported)
        exported.save(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return exported


# Writing


def _write_encoder(encoder: nn.Module, path: Path) -> None:
    height, width = (SIZE_STEP * _dim(name, 2, LARGEST_SIZE // SIZE_STEP) for name in ("h", "w"))
    shapes = ({0: _dim("M", 1, 64), 1: height, 2: width},)
    _write(encoder, (_noise(2, *EXAMPLE_HW),), path, shapes, ["images"], ENCODER_OUTPUTS)


def _write_matcher(matcher: nn.Module, model: MatchGNN, path: Path) -> None:
    most = LARGEST_SIZE // SIZE_STEP
    num_refs = _dim("R", 1, MAX_REFERENCES)
    shapes: list[dict[int, Any]] = []
    for who in ("query", "ref"):
        height, width = _dim(f"{who}_h", 2, most), _dim(f"{who}_w", 2, most)
        for cells in (1, 2, 8):  # of context, coarse and fine features in a cell of 16 pixels, along an axis
            shapes.append({2: cells * height, 3: cells * width} | ({0: num_refs} if who == "ref" else {}))
    query, references = model.encode(_noise(1, *EXAMPLE_HW)), model.encode(_noise(3, *OTHER_HW))
    # `*features` of forward is one argument to the exporter.
    _write(matcher, _inputs(query, references), path, (tuple(shapes),), MATCHER_INPUTS, MATCHES)


def _write(
    module: nn.Module,
    arguments: tuple[Tensor, ...],
    path: Path,
    shapes: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    try:
        from onnxscript import opset18 as op
    except ImportError as error:
        raise MissingExtraError("onnxscript", "export", "Exporting a network") from error

    def remainder(x: Any, divisor: Any) -> Any:
        return op.Mod(x, divisor)

    with _quiet():
        torch.onnx.export(
            module.eval(),
            arguments,
            path,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=shapes,
            input_names=list(inputs),
            output_names=list(outputs),
            external_data=False,
            verbose=False,
            # torch's own translation takes numbers that are known beforehand only.
            custom_translation_table={torch.ops.aten.remainder.Scalar: remainder},
        )


def _dim(name: str, smallest: int, largest: int) -> Any:
    return torch.export.Dim(name, min=smallest, max=largest)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about packages that nobody needs here, and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# Checking


def _noise(count: int, height: int, width: int) -> UInt8[Tensor, "M H W 3"]:
    generator = torch.Generator().manual_seed(height * width + count)
    return torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)


def _inputs(query: ImageFeatures, references: ImageFeatures) -> tuple[Tensor, ...]:
    return tuple(getattr(features, name).contiguous() for features in (query, references) for name in FEATURES)


def _encoder_examples(photos: UInt8[Tensor, "M H W 3"]) -> list[dict[str, Any]]:
    return [{"images": photo.numpy()} for photo in photos.split(1)]


def _encoder_differences(encoder: nn.Module, path: Path, photos: UInt8[Tensor, "M H W 3"] | None) -> dict[str, float]:
    session = open_session(path)
    images = [_noise(2, *size_hw) for size_hw in CHECKED_HW] if photos is None else [photos[:4]]
    pairs = [(encoder(some), run_session(session, [some], ENCODER_OUTPUTS)) for some in images]
    return {
        name: max(_difference(ours[i], theirs[i]) for ours, theirs in pairs) for i, name in enumerate(ENCODER_OUTPUTS)
    }


def _matcher_differences(
    matcher: nn.Module, model: MatchGNN, path: Path, photos: UInt8[Tensor, "M H W 3"] | None
) -> dict[str, float]:
    """Of cells that go to the same cell by both, and the share of those that do not: where two are as likely."""
    session = open_session(path)
    differences: dict[str, float] = {}
    for num_references in CHECKED_REFERENCES:
        if photos is None:
            query, references = _noise(1, *CHECKED_HW[0]), _noise(num_references, *CHECKED_HW[1])
        else:
            query, references = photos[:1], photos[torch.arange(num_references) % len(photos)]
        inputs = _inputs(model.encode(query), model.encode(references))
        ours = dict(zip(MATCHES, matcher(*inputs), strict=True))
        theirs = dict(zip(MATCHES, run_session(session, inputs, MATCHES), strict=True))
        same = ours["best"] == theirs["best"]
        found = {
            "cells_that_go_elsewhere": float((~same).float().mean()),
            "seen": _difference(ours["seen"], theirs["seen"]),
        }
        for name in ("xy", "confidence", "sigma_px"):
            found[name] = _difference(ours[name], theirs[name], same)
        differences = {name: max(value, differences.get(name, 0.0)) for name, value in found.items()}
    return differences


def _difference(
    ours: Float[Tensor, "*B"], theirs: Float[Tensor, "*B"], where: Bool[Tensor, "*C"] | None = None
) -> float:
    """The largest difference, as a share of our largest number."""
    if where is not None:
        ours, theirs = ours[where], theirs[where]
    if not ours.numel():
        return 0.0
    return float((ours - theirs).abs().max() / ours.abs().max().clamp_min(1e-12))


def _require_equal(exported: Exported) -> None:
    for file in (exported.matcher,) if exported.precision == "int8" else (exported.encoder, exported.matcher):
        for name, difference in file.max_difference.items():
            if not difference <= TOLERANCE:
                raise CheckpointError(
                    f"{file.file}: expected ONNX Runtime to say what torch says, found {name} off by {difference:.1e} "
                    f"of its largest number, and {TOLERANCE:.0e} is allowed. Nothing was written; try other versions "
                    "of onnxruntime and onnxscript."
                )


def _about(path: Path, max_difference: dict[str, float]) -> ExportedFile:
    session = open_session(path)
    return ExportedFile(
        file=path.name,
        num_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        inputs={one.name: list(one.shape) for one in session.get_inputs()},
        outputs={one.name: list(one.shape) for one in session.get_outputs()},
        max_difference=max_difference,
    )
