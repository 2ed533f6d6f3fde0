"""An ONNX file in 8 bits: weights and what flows between layers, with scales learned from examples."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relograph.errors import MissingExtraError

LAYERS = ["Conv", "Gemm", "MatMul"]


def quantise(path: Path, examples: Sequence[dict[str, Any]]) -> None:
    """Replaces a file by one in which convolutions and products with weights are computed in 8 bits.

    Products of two things that are both computed, as in an attention, stay as they are.
    """
    try:
        import onnx
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "export", "Exporting in int8") from error

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self._left: Iterator[dict[str, Any]] = iter(examples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    computed = [node.name for node in model.graph.node if node.op_type == "MatMul" and not weights & set(node.input)]
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it advises to prepare the model first, which needs fixed sizes
    try:
        quantize_static(
            path,
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=LAYERS,
            nodes_to_exclude=computed,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # without it products of 8 bits overflow on CPUs that have no VNNI
        )
    finally:
        root.setLevel(before)
