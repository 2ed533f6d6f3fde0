"""One small network that is exported once for all tests of a process: torch's exporter takes its time."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relograph.export import Exported
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import LoadedMatchGNN, load_match_gnn, save_match_gnn
from relograph.training.presets import MATCHGNN_TINY

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random ones that find many matches, as untrained ones find none that are sure."""
    torch.manual_seed(0)
    model = MatchGNN(replace(MATCHGNN_TINY.model, self_layers=1, cross_layers=1))
    torch.nn.init.normal_(model.head[3].weight, std=0.2)
    torch.nn.init.constant_(model.matcher.log_temperature, 5.0)
    folder = tmp_path_factory.mktemp("weights")
    save_match_gnn(folder, model, {})
    return folder


@pytest.fixture(scope="session")
def network(weights: Path) -> LoadedMatchGNN:
    return load_match_gnn(weights)


@pytest.fixture(scope="session")
def exported(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """By the command, in a process of its own: here types are checked, and while it exports sizes are no numbers."""
    folder = tmp_path_factory.mktemp("export") / "onnx"
    command = [sys.executable, "-m", "relograph", "export", str(folder), "--weights", str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "encoder.onnx: " in done.stdout
    return folder, Exported.load(folder)
