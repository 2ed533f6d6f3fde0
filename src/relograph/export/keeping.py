"""Exported networks that are made once and kept, for those who ask for ONNX and name no files."""

from pathlib import Path

from relograph.environment import default_cache
from relograph.export import exporting
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress


def kept_export(network: LoadedMatchGNN, progress: Progress = SILENT) -> Path:
    """The folder of the network's files in the user's cache; the first time they are exported there."""
    folder = default_cache() / f"onnx-{network.sha256[:12]}"
    if not folder.exists():
        try:
            exporting.export_match_gnn(network, folder, progress=progress)
        except OSError:
            if not folder.exists():  # else another process was faster, and these are its files
                raise
    return folder
