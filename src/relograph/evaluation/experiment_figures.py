"""What some experiments measure and draw beyond scores: rounds, saliency, cameras in 3-D, chosen neighbours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from relograph.evaluation.contact_sheet import draw_neighbours
from relograph.evaluation.experiment_sweep import Sweep, Take
from relograph.evaluation.experiments import (
    OURS,
    PAPER_ROUNDS,
    ROUNDS,
    Job,
    qualitative_evaluations,
    rounds_jobs,
    saliency_jobs,
    stride_jobs,
)
from relograph.evaluation.metrics import prediction_errors
from relograph.evaluation.paper_numbers import paper_numbers
from relograph.evaluation.plots import rounds_figure, save_figure
from relograph.evaluation.qualitative import chosen_ranks, draw_qualitative, rank_predictions
from relograph.evaluation.saliency import draw_saliency, saliency_map
from relograph.models import RelPoseGNN
from relograph.training.running import fixed_loss, graph_rows

NUM_SALIENCY_QUERIES = 4
NUM_SHEET_QUERIES = 3


@dataclass(frozen=True)
class Figure:
    """A picture that was drawn."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Drawing:
    """Where the figures of an experiment go, and what they call the data and the networks."""

    folder: Path
    prefix: str
    dataset: str
    setting: str
    """Tells figures of one experiment apart that were made with other sizes, targets or trainings."""

    def path(self, name: str) -> Path:
        """The file of a figure."""
        return self.folder / f"{self.prefix}-{name}.png"


@dataclass(frozen=True)
class Measured:
    """Rows of results, and figures."""

    results: list[dict[str, object]]
    figures: list[Figure]


def take_rounds(sweep: Sweep, job: Job) -> dict[str, Tensor]:
    """The fixed loss on the test graphs of the one scene, by rounds at test."""
    trained, rows = sweep.trained(job), graphs_of_queries(sweep, job, sweep.plan.scene)
    assert isinstance(trained.model, RelPoseGNN)
    in_training, losses = job.config.model.rounds, []
    at_test = ROUNDS if in_training == PAPER_ROUNDS else (in_training,)
    for num_rounds in at_test:
        trained.model.rounds = num_rounds
        losses.append(
            fixed_loss(trained.model, sweep.workbench.data, rows, job.config, trained.metres_per_unit, all_edges=True)
        )
    return {"rounds_at_test": torch.tensor(at_test), "loss": torch.tensor(losses, dtype=torch.float64)}


def measure_rounds(sweep: Sweep, drawing: Drawing) -> Measured:
    """The fixed loss on the test graphs of one scene: trained and tested with the same number of rounds, and the
    paper's two rounds tested with others."""
    scene = sweep.plan.scene
    losses: dict[tuple[int, int], float] = {}
    for in_training, job in zip(ROUNDS, rounds_jobs(sweep.plan), strict=True):
        taken = sweep.taken(job, "rounds")
        for at_test, loss in zip(taken["rounds_at_test"].tolist(), taken["loss"].tolist(), strict=True):
            losses[in_training, at_test] = loss
    path = drawing.path("grid")
    measured_on = f"{scene} of {drawing.dataset}"
    figure = rounds_figure(
        losses, measured_on=measured_on, published=paper_numbers().rounds, title=f"measured with {drawing.setting}"
    )
    save_figure(figure, path)
    return Measured(
        [
            {"scene": scene, "rounds_in_training": in_training, "rounds_at_test": at_test, "loss": loss}
            for (in_training, at_test), loss in losses.items()
        ],
        [Figure(path, "The fixed loss by rounds in training and at test time; lower is better.")],
    )


def take_saliency(sweep: Sweep, job: Job) -> dict[str, Tensor]:
    """What a network looks at in a few queries of the one scene, with their rows among all frames."""
    graphs = spread(graphs_of_queries(sweep, job, sweep.plan.scene), NUM_SALIENCY_QUERIES)
    model, frames = sweep.trained(job).model, sweep.workbench.data.frames
    maps = [
        saliency_map(model, frames.images[graph.clamp_min(0).to(frames.images.device)], graph >= 0) for graph in graphs
    ]
    return {"query_rows": graphs[:, 0], "maps": torch.stack(maps)}


def measure_saliency(sweep: Sweep, drawing: Drawing) -> Measured:
    """What Baseline-1, AtLoc and ours look at in a few queries of one scene."""
    scene, frames = sweep.plan.scene, sweep.workbench.data.frames
    taken = {
        name: sweep.taken(job, "saliency")
        for name, job in zip(("Baseline-1", "AtLoc", OURS), saliency_jobs(sweep.plan), strict=True)
    }
    queries = taken[OURS]["query_rows"].tolist()
    path = drawing.path("maps")
    draw_saliency(
        [
            (frames.images[query], {name: tensors["maps"][place] for name, tensors in taken.items()})
            for place, query in enumerate(queries)
        ],
        path,
    )
    caption = f"Which pixels of queries in {scene} the networks' answers hang on."
    return Measured([{"scene": scene, "frame": frames.names[query]} for query in queries], [Figure(path, caption)])


def measure_qualitative(sweep: Sweep, drawing: Drawing) -> Measured:
    """The best, median and worst answers of ours in one scene."""
    scene, frames = sweep.plan.scene, sweep.workbench.data.frames
    predictions = sweep.predictions(qualitative_evaluations(sweep.plan)).of_scene(scene)
    in_scene = frames.in_map & (frames.scene_idx == frames.scene_names.index(scene))
    path = drawing.path("cameras")
    draw_qualitative(predictions, frames.T_world_cam[in_scene], path, f"{OURS} on {scene} of {drawing.dataset}")
    errors, order = prediction_errors(predictions), rank_predictions(predictions).tolist()
    results: list[dict[str, object]] = [
        {
            "scene": scene,
            "frame": predictions.frame[order[rank]],
            "which": which,
            "rank": rank + 1,
            "translation_error_m": _finite(errors.translation_error_m[order[rank]]),
            "rotation_error_deg": _finite(errors.rotation_error_deg[order[rank]]),
        }
        for which, ranks in chosen_ranks(len(order)).items()
        for rank in ranks
    ]
    caption = f"Answers in {scene}, ranked by the fixed loss: truth green, answer blue."
    return Measured(results, [Figure(path, caption)])


def take_stride(sweep: Sweep, job: Job) -> dict[str, Tensor]:
    """The references of a few queries of the one scene, as rows among all frames."""
    return {"rows": spread(graphs_of_queries(sweep, job, sweep.plan.scene), NUM_SHEET_QUERIES)}


def measure_stride(sweep: Sweep, drawing: Drawing) -> Measured:
    """The references that the strides choose for a few queries of one scene."""
    rows_by_label = {
        f"stride {job.config.graph.stride}": sweep.taken(job, "stride")["rows"] for job in stride_jobs(sweep.plan)
    }
    path = drawing.path("neighbours")
    draw_neighbours(sweep.workbench.data.frames, rows_by_label, path)
    return Measured([], [Figure(path, f"References chosen for queries in {sweep.plan.scene}, by stride.")])


@dataclass(frozen=True)
class Measurement:
    """What an experiment measures beyond scores."""

    draw: Callable[[Sweep, Drawing], Measured]
    """Rows and figures, from what was taken of the networks and from their answers."""
    take: Take | None = None
    """What is needed of one network, while its weights are there."""


MEASUREMENTS = {
    "rounds": Measurement(measure_rounds, take_rounds),
    "saliency": Measurement(measure_saliency, take_saliency),
    "qualitative": Measurement(measure_qualitative),
    "stride": Measurement(measure_stride, take_stride),
}
"""By the name of the experiment."""


def graphs_of_queries(sweep: Sweep, job: Job, scene: str) -> Int[Tensor, "Q N"]:
    """The graphs of the test queries of a scene, as a network is asked."""
    data = sweep.workbench.data
    return graph_rows(
        data.test_rows([scene]),
        data.frames.in_map,
        sweep.descriptors_of(job),
        data,
        job.config.graph,
        seed=job.config.seed,
    )


def spread(rows: Int[Tensor, "Q N"], count: int) -> Int[Tensor, "q N"]:
    """A few of the rows, from the whole length."""
    count = min(count, len(rows))
    return rows[torch.linspace(0, len(rows) - 1, count + 2, device=rows.device)[1:-1].round().long()]


def _finite(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None
