"""Whole trainings: on scenes on disk, and the pre-training on rooms without end."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from relograph.configuration import config_from_dict, config_to_dict
from relograph.errors import CheckpointError, DatasetError
from relograph.graphs import absolute_targets, crosses_the_jump, relative_targets, target_units
from relograph.models import PoseModel, ResNet, answer_graphs, build_model
from relograph.models import all_edges as every_edge
from relograph.models.checkpoint import load_checkpoint, load_into, save_checkpoint
from relograph.models.retriever import Retriever
from relograph.progress import SILENT, Progress
from relograph.results import command_line, provenance
from relograph.retrieval import NetVLAD, rank_at_random, rank_references, select_strided, sequence_windows
from relograph.rooms import StreamConfig
from relograph.rooms.seven_rooms import LAYOUT
from relograph.rooms.textures import make_atlas
from relograph.training.config import GraphConfig, RetrievalConfig, TrainConfig
from relograph.training.data import RENDERED_HEIGHT, RelocalizationData
from relograph.training.loop import run_training
from relograph.training.losses import pose_distance
from relograph.training.objective import PoseObjective
from relograph.training.sources import SceneGraphs, StreamGraphs, generator_for

if TYPE_CHECKING:
    from lightning.fabric import Fabric

MAX_VALIDATION_QUERIES = 1000
# Numbers of images that K-means and PCA look at.
KMEANS_IMAGES, WHITENING_IMAGES = 500, 4000
FEW_HOMES = 8
EVALUATION = 1000  # a use of randomness of its own; the others are numbered in sources.py


@dataclass(frozen=True)
class Trained:
    """A network that can localize, and what it needs to."""

    config: TrainConfig
    model: PoseModel
    metres_per_unit: float
    scene_names: tuple[str, ...]
    folder: Path
    """Where its checkpoint is."""


def load_trained(folder: Path, *, device: torch.device | str = "cpu") -> Trained:
    """The best network of a training, from its run folder or from a checkpoint in it."""
    checkpoint_folder = folder / "best" if (folder / "best").is_dir() else folder
    checkpoint = load_checkpoint(checkpoint_folder)
    metadata: dict[str, Any] = checkpoint.metadata
    missing = {"config", "metres_per_unit", "scene_names"} - metadata.keys()
    if missing:
        raise CheckpointError(
            f"{checkpoint_folder}: expected a checkpoint of `relograph train`, found one without "
            f"{', '.join(sorted(missing))} in its metadata. Name the folder of a training run."
        )
    config = config_from_dict(TrainConfig, metadata["config"], where=str(checkpoint_folder))
    objective = PoseObjective(build_model(config.model), None)
    weights = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("netvlad.")}
    load_into(objective, weights, where=str(checkpoint_folder))
    scene_names = tuple(metadata["scene_names"])
    return Trained(config, objective.model.to(device).eval(), metadata["metres_per_unit"], scene_names, folder)


def spread_of_cameras(data: RelocalizationData, rows: Int[Tensor, "R"]) -> float:
    """Root mean square distance of camera centres from the middle of their scene, in metres, the same for all axes."""
    centers, scenes = data.frames.T_world_cam.t[rows], data.frames.scene_idx[rows]
    squared = [(of_scene := centers[scenes == scene]) - of_scene.mean(dim=0) for scene in scenes.unique()]
    return max(1e-6, float(torch.cat(squared).square().sum(dim=1).mean().sqrt()))


def evenly_spaced(rows: Int[Tensor, "R"], at_most: int) -> Int[Tensor, "S"]:
    """All rows where they are few enough, else so many of them from the first to the last.

    Example:
        >>> evenly_spaced(torch.arange(100, 110), 4).tolist()
        [100, 103, 106, 109]
    """
    count = min(at_most, len(rows))
    return rows[torch.arange(count, device=rows.device) * (len(rows) - 1) // max(1, count - 1)]


def make_retriever(
    encoder: ResNet, data: RelocalizationData, rows: Int[Tensor, "R"], config: RetrievalConfig, seed: int
) -> Retriever:
    """NetVLAD on an encoder as it is now, started by K-means and whitened on some training images."""
    retriever = Retriever(
        copy.deepcopy(encoder), num_clusters=config.num_clusters, image_height=config.image_height
    ).to(data.is_test.device)
    generator = generator_for(seed, EVALUATION, 0)

    def some(count: int) -> Tensor:
        return data.frames.images[evenly_spaced(rows, count).to(data.frames.images.device)]

    retriever.initialise(some(KMEANS_IMAGES), generator)
    retriever.whiten(some(WHITENING_IMAGES), config.descriptor_dim)
    return retriever


def save_retriever(retriever: Retriever, folder: Path) -> None:
    """Write a retriever as a checkpoint of its own."""
    encoder = retriever.encoder
    blocks = [len(getattr(encoder, f"layer{stage}")) for stage in range(1, 5)]
    save_checkpoint(
        folder,
        {f"retriever.{name}": tensor for name, tensor in retriever.state_dict().items()},
        {
            "num_clusters": len(retriever.netvlad.centres),
            "image_height": retriever.image_height,
            "encoder_blocks": blocks,
            "encoder_width": encoder.conv1.out_channels,
            "channels": encoder.fc.out_features,
        },
    )


def load_retriever(folder: Path, *, device: torch.device | str = "cpu") -> Retriever:
    """A retriever that `save_retriever` wrote."""
    checkpoint = load_checkpoint(folder)
    metadata: dict[str, Any] = checkpoint.metadata
    try:
        blocks, width, channels = (metadata[key] for key in ("encoder_blocks", "encoder_width", "channels"))
        encoder = ResNet(channels, blocks=tuple(blocks), width=width)
        retriever = Retriever(encoder, num_clusters=metadata["num_clusters"], image_height=metadata["image_height"])
    except KeyError as error:
        raise CheckpointError(
            f"{folder}: expected a checkpoint of a retriever, found one without {error}. Name the folder `retriever` "
            "of a training run."
        ) from error
    tensors = {name.removeprefix("retriever."): tensor for name, tensor in checkpoint.tensors.items()}
    # Their sizes are known only now; in float32, whatever the file saves space with.
    retriever.whitening_mean = torch.zeros(tensors["whitening_mean"].shape)
    retriever.whitening_projection = torch.zeros(tensors["whitening_projection"].shape)
    load_into(retriever, tensors, where=str(folder))
    return retriever.to(device).eval()


def graph_rows(
    query_rows: Int[Tensor, "Q"],
    database: Tensor,
    descriptors: Float[Tensor, "F D"] | None,
    data: RelocalizationData,
    config: GraphConfig,
    *,
    seed: int = 0,
) -> Int[Tensor, "Q N"]:
    """The graphs of queries as in a test: no luck (offset 0), or for random references the luck of the seed."""
    frames = data.frames
    if config.selection == "alone":
        return query_rows[:, None]
    if config.selection == "sequence":
        # Among frames of the same use: those of the map may belong to the same sequence.
        first = query_rows[:1]
        same_use = (data.is_test == data.is_test[first]) & (data.held_out == data.held_out[first])
        rows = same_use.nonzero().squeeze(1)
        window = sequence_windows(frames.sequence_idx[rows], torch.searchsorted(rows, query_rows), config.num_nodes)
        return torch.where(window >= 0, rows[window], -1)
    if config.selection == "random":
        generator = generator_for(seed, EVALUATION, 1, query_rows.device)
        references = rank_at_random(
            query_rows, database, frames.scene_idx, length=config.num_references, generator=generator
        )
        return torch.cat([query_rows[:, None], references], dim=1)
    assert descriptors is not None
    ranked = rank_references(
        query_rows,
        database,
        descriptors,
        frames.scene_idx,
        frames.sequence_idx,
        length=config.num_references * config.stride,
    )
    return torch.cat([query_rows[:, None], select_strided(ranked, config.num_references, config.stride)], dim=1)


def fixed_loss(
    model: PoseModel,
    data: RelocalizationData,
    rows: Int[Tensor, "Q N"],
    config: TrainConfig,
    metres_per_unit: float,
    *,
    all_edges: bool = False,
) -> float:
    """Mean distance, with beta 0 and gamma -3, of what a network says about the queries of graphs.

    With `all_edges` it is that of every edge, as the paper's loss is, and not of those to the query alone.
    """
    answers = answer_graphs(model, data.frames, rows)
    T_world_cam = data.frames.T_world_cam[rows.clamp_min(0)]
    unit = target_units(metres_per_unit, rows.device)
    if answers.all_edges is not None and config.model.predicts_edges:
        wanted = relative_targets(T_world_cam, config.model.target)
        there = every_edge(rows >= 0)
        if not all_edges:
            there[:, :, 1:] = False
        return float(pose_distance(answers.all_edges * unit, wanted)[there].mean())
    assert answers.nodes is not None
    return float(pose_distance(answers.nodes * unit, absolute_targets(T_world_cam[:, 0])).mean())


def paired_rows(
    query_rows: Int[Tensor, "Q"], database: Bool[Tensor, "F"], pairs: Int[Tensor, "F L"]
) -> tuple[Int[Tensor, "P"], Int[Tensor, "P L"]]:
    """The queries that a user paired with rows of the database, and these rows, best first and -1 at the end."""
    ranked = pairs[query_rows]
    there = (ranked >= 0) & database[ranked.clamp_min(0)]
    those_first = there.int().argsort(dim=1, descending=True, stable=True)
    ranked, is_paired = ranked.masked_fill(~there, -1).gather(1, those_first), there.any(dim=1)
    return query_rows[is_paired], ranked[is_paired]


def training_stride(stride: int, database: Bool[Tensor, "F"], in_map: Bool[Tensor, "F"]) -> int:
    """The stride that leaves references as far apart as at test time, where the map alone is searched.

    Where more walks are rendered, a query has that many more frames near it; every fifth of them would be its twin.
    """
    on_map = int((database & in_map).sum())
    return stride * max(1, round(int(database.sum()) / on_map)) if on_map else stride


def train_on_scenes(
    config: TrainConfig,
    data: RelocalizationData,
    scene_names: Sequence[str],
    output: Path,
    *,
    fabric: "Fabric",
    descriptors: Float[Tensor, "F D"] | None,
    pairs: Int[Tensor, "F L"] | None = None,
    encoder: ResNet | None = None,
    progress: Progress = SILENT,
) -> Trained:
    """Train on the training frames of some scenes, starting from the weights of `encoder` where it is given.

    References are those of similar descriptors or, where a user gives `pairs`, the frames in them: for every frame its
    references, best first, -1 where there are no more. Frames without any are no queries then.
    """
    train_rows, validation_rows = data.train_rows(scene_names), data.validation_rows(scene_names)
    if len(train_rows) < 2:
        held_out = f" beside {len(validation_rows)} held out for validation" if len(validation_rows) else ""
        raise DatasetError(
            f"expected at least 2 training frames in {', '.join(scene_names)}, found {len(train_rows)}{held_out}. "
            "A network needs a pair of images to learn from; add frames to the training split."
        )
    frames, graph = data.frames, config.graph
    metres_per_unit = config.data.metres_per_unit or spread_of_cameras(data, train_rows)
    torch.manual_seed(config.seed)
    model = build_model(config.model)
    if encoder is not None:
        copy_encoder(encoder, model.encoder)
    database = torch.zeros_like(data.is_test)
    database[train_rows] = True
    if graph.references_from == "map":
        database &= frames.in_map
    references = frames.in_map & ~data.held_out & data.of_scenes(scene_names)  # of validation, as at test time
    query_rows, ranked = train_rows, train_rows.new_zeros(len(train_rows), 0)
    if pairs is not None:
        query_rows, ranked = paired_rows(train_rows, database, pairs)
        validation_rows, _ = paired_rows(validation_rows, references, pairs)
        if not len(query_rows):
            raise DatasetError(
                f"expected pairs of training frames in {', '.join(scene_names)}, found none beside those that are held "
                "out for validation. Add lines with training frames as queries and as references."
            )
    else:
        graph = replace(graph, stride=training_stride(graph.stride, database, frames.in_map))
    if graph.selection == "retrieval" and pairs is None:
        assert descriptors is not None
        ranked = rank_references(
            train_rows,
            database,
            descriptors,
            frames.scene_idx,
            frames.sequence_idx,
            length=graph.num_references * graph.stride,
            exclude_same_sequence=graph.exclude_same_sequence,
            same_sequence_if_alone=True,
            progress=progress,
        )
    batch_size = config.optim.batch_size
    source = SceneGraphs(
        frames,
        query_rows,
        database,
        ranked,
        graph,
        batch_size,
        config.optim.steps_per_epoch or math.ceil(len(query_rows) / batch_size),
        config.seed,
        with_overlap=config.retrieval.loss == "covisibility",
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    validate = None
    if len(validation_rows):
        queries = evenly_spaced(validation_rows, MAX_VALIDATION_QUERIES)
        if pairs is None:
            validation_graphs = graph_rows(queries, references, descriptors, data, config.graph, seed=config.seed)
        else:
            _, of_queries = paired_rows(queries, references, pairs)
            chosen = select_strided(of_queries, config.graph.num_references, config.graph.stride)
            validation_graphs = torch.cat([queries[:, None], chosen], dim=1)

        def validate(objective: nn.Module) -> float:
            assert isinstance(objective, PoseObjective)
            with fabric.autocast():
                return fixed_loss(objective.model, data, validation_graphs, config, metres_per_unit)

    metadata = {
        "config": config_to_dict(config),
        "metres_per_unit": metres_per_unit,
        "scene_names": list(scene_names),
        "data_fingerprint": data.fingerprint,
        "image_size_hw": list(frames.images.shape[1:3]),
        "training_stride": graph.stride,
        "share_of_edges_across_the_jump": share_across_the_jump(source, config),
        "provenance": provenance(command=command_line(), seed=config.seed, device=fabric.device.type),
    }
    netvlad = None
    if config.retrieval.loss != "none":
        netvlad = make_retriever(
            model.encoder.to(data.is_test.device), data, train_rows, config.retrieval_as_used, config.seed
        ).netvlad
    objective = PoseObjective(model, netvlad, config.retrieval)
    run_training(
        config,
        objective,
        source,
        output,
        fabric=fabric,
        validate=validate,
        metadata=metadata,
        metres_per_unit=metres_per_unit,
        progress=progress,
    )
    return Trained(config, objective.model.eval(), metres_per_unit, tuple(scene_names), output)


def share_across_the_jump(source: SceneGraphs, config: TrainConfig) -> float | None:
    """Share of edges whose world target takes the long way round, in a few hundred graphs; None where there are none
    with such a target."""
    if config.model.target != "world":
        return None
    rows = torch.cat([source.rows(step) for step in range(max(1, 512 // source.batch_size))])
    there = (rows[:, :, None] >= 0) & (rows[:, None, :] >= 0)
    there &= ~torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    crossing = crosses_the_jump(source.frames.T_world_cam[rows.clamp_min(0)])[there]
    return float(crossing.float().mean()) if len(crossing) else None


def copy_encoder(source: ResNet, target: ResNet) -> None:
    """Start an encoder from another's weights; the last layer stays as it is where its length differs."""
    weights = source.state_dict()
    if source.fc.out_features != target.fc.out_features:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
        weights |= {name: tensor for name, tensor in target.state_dict().items() if name.startswith("fc.")}
    load_into(target, weights, where="the given encoder")


def pretrain(
    config: TrainConfig,
    output: Path,
    *,
    fabric: "Fabric",
    encoder: ResNet | None = None,
    netvlad: NetVLAD | None = None,
    progress: Progress = SILENT,
) -> Retriever:
    """Train the encoder, a graph network and NetVLAD on rooms without end.

    They start from the given weights; without any, the encoder from random ones and NetVLAD from K-means on what the
    encoder sees. `output/retriever` is what other trainings start from.
    """
    torch.manual_seed(config.seed)
    model = build_model(config.model).to(fabric.device)
    retrieval = config.retrieval_as_used
    retriever = Retriever(model.encoder, num_clusters=retrieval.num_clusters, image_height=retrieval.image_height).to(
        fabric.device
    )
    source = stream_for_pretraining(config, fabric)
    if encoder is not None:
        copy_encoder(encoder, model.encoder)
    if netvlad is not None:
        load_into(retriever.netvlad, netvlad.state_dict(), where="the retrieval to start from")
    else:
        few_homes = source.with_homes(FEW_HOMES)
        retriever.initialise(images_of(few_homes, KMEANS_IMAGES), generator_for(config.seed, EVALUATION, 0))
    metadata = {
        "config": config_to_dict(config),
        "metres_per_unit": 1.0,
        "scene_names": [],
        "provenance": provenance(command=command_line(), seed=config.seed, device=fabric.device.type),
    }
    objective = PoseObjective(model, retriever.netvlad, config.retrieval)
    run_training(config, objective, source, output, fabric=fabric, metadata=metadata, progress=progress)
    retriever.whiten(images_of(source.with_homes(FEW_HOMES), WHITENING_IMAGES), config.retrieval.descriptor_dim)
    if fabric.is_global_zero:
        save_retriever(retriever, output / "retriever")
    return retriever


def stream_for_pretraining(config: TrainConfig, fabric: "Fabric") -> StreamGraphs:
    """RoomStream as pre-training sees it: few rolled cameras, and neighbours that see a tenth of the query or more."""
    height, on_gpu = config.data.image_height, fabric.device.type == "cuda"
    # On a GPU images are rendered as large and as many at once as for more walks, whose kernels are compiled then.
    rendered = max(height, RENDERED_HEIGHT) if on_gpu else height
    stream = StreamConfig(
        image_height=rendered,
        image_width=math.floor(rendered * 4 / 3),
        graphs_per_batch=config.optim.batch_size // fabric.world_size,
        num_nodes=config.graph.num_nodes,
        overlap=(0.1, 0.9),
        layout=LAYOUT,
        any_roll_share=0.05,
        num_homes=256 if on_gpu else FEW_HOMES,
        views_per_home=64,
        seed=config.seed,
    )
    return StreamGraphs(
        stream,
        config.optim.steps_per_epoch or 100,
        fabric.device,
        make_atlas(config.seed),
        rank=fabric.global_rank,
        image_height=height if height != rendered else 0,
    )


def images_of(source: StreamGraphs, at_least: int) -> Tensor:
    """Images [F, H, W, 3] of rooms that the training itself does not show."""
    on_gpu = source.device.type == "cuda"
    images: list[Tensor] = []
    for batch in source.batches(10**6):
        images.append(batch.images.flatten(0, 1))
        if sum(map(len, images)) >= (at_least if on_gpu else at_least // 20):
            break
    return torch.cat(images)
