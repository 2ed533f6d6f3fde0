"""MatchGNN as ONNX: for runtimes other than torch, and faster on some CPUs."""

from relograph.export.exporting import export_match_gnn
from relograph.export.files import Exported, ExportedFile
from relograph.export.running import with_onnx

__all__ = ["Exported", "ExportedFile", "export_match_gnn", "with_onnx"]
