"""Two processes with gloo, as torchrun starts them: the same training as one process at the same whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_processes
from tiny_trainings import assert_same_weights, saved
from two_processes import KITCHEN_AND_CLOSET, SHARED, make_source, with_a_bad_frame

from relograph.models import build_model
from relograph.training.loop import make_fabric, read_log, run_training
from relograph.training.objective import PoseObjective


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two processes have trained in."""
    output = tmp_path_factory.mktemp("together")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(two_processes.__file__)
    done = subprocess.run(
        [*torchrun, str(script), str(output)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return output


def seen(together: Path) -> list[dict]:
    return [json.loads((together / f"seen-{rank}.json").read_text()) for rank in range(2)]


def test_torchruns_processes_find_each_other(together: Path) -> None:
    assert [process["world_size"] for process in seen(together)] == [2, 2]


def test_two_processes_get_the_weights_of_one_with_the_whole_batch(together: Path, tmp_path: Path) -> None:
    source = make_source(SHARED, KITCHEN_AND_CLOSET)
    num_images = torch.stack([(source.rows(step) >= 0).sum(dim=1) for step in range(source.steps_per_epoch)])
    num_edges = (num_images * (num_images - 1)).reshape(-1, 2, 2).sum(dim=2)  # [steps, processes]
    assert (num_edges[:, 0] != num_edges[:, 1]).any()  # a mean of the processes' means would be another loss
    torch.manual_seed(0)
    alone = PoseObjective(build_model(SHARED.model))
    start = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    run_training(SHARED, alone, source, tmp_path, fabric=make_fabric())
    for rank in range(2):
        assert_same_weights(saved(together / f"shared-{rank}"), alone.state_dict(), tolerance=1e-5)
    moved = [(alone.state_dict()[name] - tensor).abs().max().item() for name, tensor in start.items()]
    assert max(moved) > 5e-3  # five hundred times what the two may differ by


def test_the_log_of_two_processes_is_that_of_the_first(together: Path) -> None:
    assert [row["step"] for row in read_log(together / "shared" / "log.csv")] == [3, 6]


def test_processes_agree_on_the_validation_though_their_running_statistics_differ(together: Path) -> None:
    one, other = (process["watched"] for process in seen(together))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}  # each has a clock of its own
    assert one["step"] == 9


def test_a_batch_that_processes_cannot_share_is_refused(together: Path) -> None:
    for process in seen(together):
        assert process["of an odd batch"] == (
            "optim.batch_size must be a multiple of the number of processes (2), got 3."
        )


@pytest.mark.parametrize("step", [0, 1])
def test_a_bad_frame_in_one_process_stops_both_before_anything_is_saved(together: Path, step: int) -> None:
    _, name = with_a_bad_frame(step)
    for process in seen(together):
        message = process["of a bad frame"][step]
        assert message.startswith(f"expected a finite loss, found none in step {step}, with the frames ")
        assert name in message
    assert not (together / f"bad-{step}" / "last").exists()
