"""A MatchGNN whose encoder and matcher run in ONNX Runtime; all else of it stays as it is."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relograph.errors import CheckpointError, ConfigError, MissingExtraError
from relograph.export.files import MAX_REFERENCES, Exported
from relograph.models.match_gnn import ImageFeatures, Matches, MatchGNN

MATCHES = ("xy", "confidence", "best", "mutual", "sigma_px", "seen")
"""Outputs of the matcher, in their order."""
FEATURES = ("context", "coarse", "fine")


def with_onnx(model: MatchGNN, folder: Path, *, weights_sha256: str) -> MatchGNN:
    """A copy of `model` that encodes and matches by the files in `folder`, which must be an export of these weights."""
    exported = Exported.load(folder)
    if exported.weights_sha256 != weights_sha256:
        raise CheckpointError(
            f"{folder}: expected an export of these weights ({weights_sha256[:12]}), found one of others "
            f"({exported.weights_sha256[:12]}). Export these weights, or give those that were exported."
        )
    running = copy.copy(model)  # parts that are replaced are replaced in the copy alone, and others are shared
    running._modules = dict(model._modules)
    running.register_module("encoder", OnnxEncoder(folder / exported.encoder.file))
    running.register_module("matcher", OnnxMatcher(folder / exported.matcher.file))
    return running


class OnnxEncoder(nn.Module):
    """`DenseEncoder` on the CPU, by an exported file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._session = open_session(path)

    def forward(self, images: Tensor) -> ImageFeatures:
        """Features of images [M, H, W, 3] of type uint8."""
        if images.dtype != torch.uint8:
            raise ConfigError(f"An exported encoder takes images of uint8, got {images.dtype}.")
        return ImageFeatures(*run_session(self._session, [images], FEATURES))


class OnnxMatcher(nn.Module):
    """`Matcher` on the CPU, by an exported file; it keeps nothing to learn from."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._session = open_session(path)

    def forward(
        self, query: ImageFeatures, references: ImageFeatures, num_references: int, *, keep_log_coarse: bool = False
    ) -> Matches:
        """Matches of B queries with B x R references, those of a query together."""
        if keep_log_coarse:
            raise ConfigError("An exported matcher keeps no chances between cells: nothing can be learned from it.")
        if not 1 <= num_references <= MAX_REFERENCES:
            raise ConfigError(f"A query has 1 to {MAX_REFERENCES} references, got {num_references}.")
        answers = []
        for number in range(len(query.context)):
            some = references[number * num_references : (number + 1) * num_references]
            one = query[number : number + 1]
            inputs = [getattr(features, name).float() for features in (one, some) for name in FEATURES]
            answers.append(run_session(self._session, inputs, MATCHES))
        return Matches(**{name: torch.cat(parts) for name, *parts in zip(MATCHES, *answers, strict=True)})


def open_session(path: Path) -> Any:
    """The network in an ONNX file, on as many threads as torch has."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "export", "Running an exported network") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that wait by spinning would take the cores from torch's, which solve and regress in between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: Sequence[Tensor], outputs: Sequence[str]) -> list[Tensor]:
    """Outputs of a session by their names; inputs stand in its own order."""
    names = [needed.name for needed in session.get_inputs()]
    fed = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(list(outputs), fed)]
