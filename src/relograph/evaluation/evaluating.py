"""From a method and test frames to predictions: networks, and the baselines that need none."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relograph.evaluation.predictions import NearestReference, Predictions, nearest_reference
from relograph.geometry import Pose
from relograph.graphs import PosedImages, target_units
from relograph.localization import EdgeReading, interpolated_pose, query_pose
from relograph.models import answer_graphs
from relograph.progress import SILENT, Progress
from relograph.retrieval import rank_references, select_strided
from relograph.training.data import RelocalizationData
from relograph.training.running import Trained, graph_rows
from relograph.training.sources import generator_for

NO_REFERENCE = "the map has no reference images of this scene"
NUM_INTERPOLATED = 5
READING = 2000  # a use of randomness of its own


def evaluate(
    trained: Trained,
    data: RelocalizationData,
    scene_names: Sequence[str],
    *,
    descriptors: Float[Tensor, "F D"] | None,
    ranked: Int[Tensor, "F L"] | None = None,
    readings: Sequence[EdgeReading] = ("nearest",),
    num_rounds: int | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> dict[EdgeReading, Predictions]:
    """What a network answers to the test queries of some scenes, for each way to read its edges.

    The references are the map of the queries' own scenes, seen in training or not: those of similar descriptors, or
    those that a user `ranked` for every frame, which counts where a network takes its references by rank. `num_rounds`
    runs a graph network with another number of rounds than it was trained with. A network that says absolute poses has
    one reading only.
    """
    queries = data.test_rows(scene_names)
    graph = trained.config.graph
    if ranked is not None and graph.selection == "retrieval":
        references = select_strided(ranked[queries], graph.num_references, graph.stride)
        rows = torch.cat([queries[:, None], references], dim=1)
    else:
        rows = graph_rows(queries, data.frames.in_map, descriptors, data, graph, seed=seed)
    model = trained.model
    trained_rounds = getattr(model, "rounds", None)
    if num_rounds is not None:
        model.rounds = num_rounds  # type: ignore[assignment]  # a graph network's; undone below
    try:
        answers = answer_graphs(model, data.frames, rows, progress=progress)
    finally:
        if num_rounds is not None:
            model.rounds = trained_rounds  # type: ignore[assignment]  # as it was
    unit = target_units(trained.metres_per_unit, rows.device)
    if not trained.config.model.predicts_edges:
        assert answers.nodes is not None
        said = answers.nodes.float() * unit
        T_world_cam = Pose.from_log_quat(said[:, 3:], said[:, :3])
        everywhere = torch.ones(len(queries), dtype=torch.bool)
        return {"nearest": as_predictions(data.frames, queries, T_world_cam, everywhere, None)}
    assert answers.edges is not None
    references, there = rows[:, 1:], rows[:, 1:] >= 0
    T_world_ref = data.frames.T_world_cam[references.clamp_min(0)]
    predictions = {}
    for reading in readings:
        T_world_cam = query_pose(
            answers.edges.float() * unit,
            T_world_ref,
            there,
            trained.config.model.target,
            reading=reading,
            generator=generator_for(seed, READING, 0),
        )
        predictions[reading] = as_predictions(data.frames, queries, T_world_cam, there[:, 0], references[:, 0])
    return predictions


def copy_top1(
    data: RelocalizationData,
    scene_names: Sequence[str],
    descriptors: Float[Tensor, "F D"] | None,
    *,
    ranked: Int[Tensor, "F L"] | None = None,
) -> Predictions:
    """The pose of the most similar reference, as it is: the row that every table needs."""
    if ranked is None:
        assert descriptors is not None
        queries, of_queries = ranked_map(data, scene_names, descriptors, 1)
    else:
        queries = data.test_rows(scene_names)
        of_queries = ranked[queries]
    top1 = of_queries[:, 0]
    return as_predictions(data.frames, queries, data.frames.T_world_cam[top1.clamp_min(0)], top1 >= 0, top1)


def interpolate_top(
    data: RelocalizationData,
    scene_names: Sequence[str],
    descriptors: Float[Tensor, "F D"],
    *,
    num_references: int = NUM_INTERPOLATED,
) -> Predictions:
    """Retrieval with interpolation over the most similar references."""
    queries, ranked = ranked_map(data, scene_names, descriptors, num_references)
    safe = ranked.clamp_min(0)
    T_world_cam = interpolated_pose(descriptors[queries], descriptors[safe], data.frames.T_world_cam[safe], ranked >= 0)
    return as_predictions(data.frames, queries, T_world_cam, ranked[:, 0] >= 0, ranked[:, 0])


def ranked_map(
    data: RelocalizationData, scene_names: Sequence[str], descriptors: Float[Tensor, "F D"], length: int
) -> tuple[Int[Tensor, "Q"], Int[Tensor, "Q L"]]:
    """Test queries and the most similar frames of their scene's map."""
    queries = data.test_rows(scene_names)
    frames = data.frames
    ranked = rank_references(queries, frames.in_map, descriptors, frames.scene_idx, frames.sequence_idx, length=length)
    return queries, ranked


def as_predictions(
    frames: PosedImages,
    queries: Int[Tensor, "Q"],
    T_world_cam: Pose,
    localized: Tensor,
    top1: Int[Tensor, "Q"] | None,
) -> Predictions:
    """Answers with their truth; none, and why, where there was no reference or where the answer is not finite."""
    scene_of = frames.scene_idx[queries].tolist()
    distance, angle = (torch.full((len(queries),), torch.nan, dtype=torch.float64) for _ in range(2))
    for scene in set(scene_of):
        of_scene = frames.scene_idx[queries] == scene
        references = (frames.in_map & (frames.scene_idx == scene)).nonzero().squeeze(1)
        if len(references):
            nearest = nearest_reference(frames.T_world_cam[queries[of_scene]], frames.T_world_cam[references])
            distance[of_scene.cpu()], angle[of_scene.cpu()] = nearest[0].cpu().double(), nearest[1].cpu().double()
    return Predictions.from_poses(
        scene=[frames.scene_names[scene] for scene in scene_of],
        frame=[frames.names[row] for row in queries.tolist()],
        T_world_true=frames.T_world_cam[queries],
        T_world_cam=T_world_cam,
        top1=None if top1 is None else [frames.names[row] if row >= 0 else "" for row in top1.tolist()],
        nearest=NearestReference(distance, angle),
        reason=["" if ok else NO_REFERENCE for ok in localized.tolist()],
    )
