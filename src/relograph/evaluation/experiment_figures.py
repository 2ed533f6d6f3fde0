"""What some experiments measure and draw beyond scores: rounds, saliency, cameras in 3-D, chosen neighbours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from relograph.evaluation.contact_sheet import draw_neighbours
from relograph.evaluation.experiment_sweep import Sweep
from relograph.evaluation.experiments import OURS, PAPER_ROUNDS, ROUNDS, Job, rounds_jobs, saliency_jobs
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
    """Where the figures of an experiment go, and what they call the data."""

    folder: Path
    prefix: str
    dataset: str

    def path(self, name: str) -> Path:
        """The file of a figure."""
        return self.folder / f"{self.prefix}-{name}.png"


@dataclass(frozen=True)
class Measured:
    """Rows of results, and figures."""

    results: list[dict[str, object]]
    figures: list[Figure]


def measure_rounds(sweep: Sweep, drawing: Drawing) -> Measured:
    """The fixed loss on the test graphs of one scene: trained and tested with the same number of rounds, and the
    paper's two rounds tested with others."""
    scene = sweep.plan.scene
    losses: dict[tuple[int, int], float] = {}
    for in_training, job in zip(ROUNDS, rounds_jobs(sweep.plan), strict=True):
        trained, rows = sweep.trained(job), graphs_of_queries(sweep, job, scene)
        assert isinstance(trained.model, RelPoseGNN)
        for at_test in ROUNDS if in_training == PAPER_ROUNDS else (in_training,):
            trained.model.rounds = at_test
            losses[in_training, at_test] = fixed_loss(
                trained.model, sweep.workbench.data, rows, job.config, trained.metres_per_unit, all_edges=True
            )
    path = drawing.path("grid")
    measured_on = f"{scene} of {drawing.dataset}"
    save_figure(rounds_figure(losses, measured_on=measured_on, published=paper_numbers().rounds), path)
    return Measured(
        [
            {"scene": scene, "rounds_in_training": in_training, "rounds_at_test": at_test, "loss": loss}
            for (in_training, at_test), loss in losses.items()
        ],
        [Figure(path, "The fixed loss by rounds in training and at test time; lower is better.")],
    )


def measure_saliency(sweep: Sweep, drawing: Drawing) -> Measured:
    """What Baseline-1, AtLoc and ours look at in a few queries of one scene."""
    scene, frames = sweep.plan.scene, sweep.workbench.data.frames
    jobs = dict(zip(("Baseline-1", "AtLoc", OURS), saliency_jobs(sweep.plan), strict=True))
    graphs = {name: spread(graphs_of_queries(sweep, job, scene), NUM_SALIENCY_QUERIES) for name, job in jobs.items()}
    queries = graphs[OURS][:, 0].tolist()
    maps: list[dict[str, Tensor]] = [{} for _ in queries]
    for name, job in jobs.items():
        model = sweep.trained(job).model
        for map_of, graph in zip(maps, graphs[name], strict=True):
            images = frames.images[graph.clamp_min(0).to(frames.images.device)]
            map_of[name] = saliency_map(model, images, graph >= 0)
    path = drawing.path("maps")
    draw_saliency([(frames.images[query], map_of) for query, map_of in zip(queries, maps, strict=True)], path)
    shown = [{"scene": scene, "frame": frames.names[query]} for query in queries]
    caption = f"Which pixels of queries in {scene} the networks' answers hang on."
    return Measured([dict(row) for row in shown], [Figure(path, caption)])


def measure_qualitative(sweep: Sweep, drawing: Drawing) -> Measured:
    """The best, median and worst answers of ours in one scene."""
    scene, frames = sweep.plan.scene, sweep.workbench.data.frames
    evaluations = sweep.plan.on_all(sweep.plan.ours())
    sweep.predict(evaluations)
    predictions = sweep.predictions(evaluations).of_scene(scene)
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


def measure_stride(sweep: Sweep, drawing: Drawing) -> Measured:
    """The references that the strides choose for a few queries of one scene."""
    scene, plan = sweep.plan.scene, sweep.plan
    strides = sorted({1, plan.single(scene).config.graph.stride})
    rows_by_label = {
        f"stride {stride}": spread(
            graphs_of_queries(sweep, plan.single(scene, stride=stride), scene), NUM_SHEET_QUERIES
        )
        for stride in strides
    }
    path = drawing.path("neighbours")
    draw_neighbours(sweep.workbench.data.frames, rows_by_label, path)
    return Measured([], [Figure(path, f"References chosen for queries in {scene}, by stride.")])


MEASUREMENTS: dict[str, Callable[[Sweep, Drawing], Measured]] = {
    "rounds": measure_rounds,
    "saliency": measure_saliency,
    "qualitative": measure_qualitative,
    "stride": measure_stride,
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
