"""Our own rows of a comparison: one map of features, and a `Localizer` on it for each way to answer."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float64, Int, UInt8
from torch import Tensor

from relograph.evaluation.place import WRONG_FOCAL, AnyCamera, FocalTold, Place, PosedPhotos
from relograph.evaluation.place_answers import MethodAnswers, QueryAnswer
from relograph.evaluation.solver_pool import PendingAnswers, SolverPool
from relograph.geometry import Pose
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.localizer import Answer, Localizer, Solver
from relograph.localization.map_features import MapFeatures, Precision
from relograph.models.shipped import LoadedMatchGNN
from relograph.progress import SILENT, Progress
from relograph.replaying import WARM_UP_CALLS


@dataclass(frozen=True)
class OurWay:
    """One of our rows: which pose is taken, and what is told of the cameras."""

    solver: Solver
    focal: FocalTold

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.solver == "regress":
            return "relograph, regression" + ("" if self.focal == "none" else f", {self._focal}")
        how = "" if self.solver == "auto" else " alone"
        return f"relograph, solver{how}, {self._focal}"

    @property
    def _focal(self) -> str:
        return f"f {WRONG_FOCAL - 1:.0%} too long" if self.focal == "wrong" else f"f {self.focal}"


PENDING_PER_WORKER = 4
"""Comparisons that wait for each process that solves."""
REGRESSION = OurWay("regress", "none")


@dataclass(frozen=True)
class OurMap:
    """The features of a place's map, made once."""

    features: MapFeatures
    seconds: Float64[np.ndarray, "F"]
    """For each photo, reading it not counted: the mean, as they are made several at a time."""

    @staticmethod
    def of(
        photos: PosedPhotos,
        network: LoadedMatchGNN,
        *,
        precision: Precision = "float16",
        progress: Progress = SILENT,
    ) -> "OurMap":
        """Computed and kept where the network is."""
        reading: list[float] = []
        device = next(network.model.parameters()).device
        begin = perf_counter()
        features = MapFeatures.of(
            [_MapPhoto(photos, row, reading) for row in range(len(photos))],
            network,
            precision=precision,
            device=device,
            progress=progress,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = (perf_counter() - begin - sum(reading)) / len(photos)
        return OurMap(features, np.full(len(photos), seconds))


def our_answers(
    place: Place,
    our_map: OurMap,
    network: LoadedMatchGNN,
    way: OurWay,
    *,
    num_references: int = 7,
    references: Int[Tensor, "Q R"] | None = None,
    pool: SolverPool | None = None,
    progress: Progress = SILENT,
) -> list[Answer]:
    """The answers to all queries of a place, with references by retrieval or with those that are given.

    With a `pool` other processes solve, and times mean little; regression needs none.
    """
    told = place.told(way.focal)
    if way.focal == "searched" and not place.queries.focal_known:
        told = place  # it says itself which cameras have a focal length in common
    features = replace(our_map.features, cameras=told.map.cameras)
    localizer = Localizer(features, network, num_references=num_references, solver=way.solver)
    calibration = network.calibration or UNCALIBRATED
    answers: list[Answer] = []
    pending: deque[Answer | PendingAnswers] = deque()
    num_pending = 0 if pool is None or way.solver == "regress" else PENDING_PER_WORKER * pool.num_workers
    if pool is None and len(place.queries):  # what only the first calls take is nobody's time
        first = place.queries.read(0)
        for _ in range(WARM_UP_CALLS + 1 if localizer.device.type == "cuda" else 1):
            localizer.compare(first, camera=told.queries.cameras[0])
    with progress.task(way.name, total=len(place.queries)) as advance:

        def take() -> None:
            first = pending.popleft()
            answers.extend([first] if isinstance(first, Answer) else first.result())
            advance(1)

        for query, camera in enumerate(told.queries.cameras):
            rows = None if references is None else [row for row in references[query].tolist() if row >= 0]
            image = place.queries.read(query)
            if pool is None or not num_pending:
                pending.append(localizer.localize(image, camera=camera, references=rows))
            else:
                compared = localizer.compare(image, camera=camera, references=rows)
                if not isinstance(compared, Answer):
                    pending.append(pool.submit(compared, [way.solver], calibration))
                else:
                    pending.append(compared)
            if len(pending) > num_pending:
                take()
        while pending:
            take()
    return answers


def used_references(answers: Sequence[Answer], num_references: int) -> Int[Tensor, "Q R"]:
    """The rows of the map that answers rest on, in their order, with -1 where there are fewer."""
    rows = torch.full((len(answers), num_references), -1, dtype=torch.long)
    for query, answer in enumerate(answers):
        used = [reference.row for reference in answer.references]
        rows[query, : len(used)] = torch.tensor(used, dtype=torch.long)
    return rows


def our_row(
    place: Place,
    way: OurWay,
    answers: Sequence[Answer],
    references: Int[Tensor, "Q R"],
    map_seconds: Float64[np.ndarray, "F"],
) -> MethodAnswers:
    """The answers as a row of the comparison: every pose that was found, with how sure it is."""
    as_answers = [_as_query_answer(answer, way) for answer in answers]
    return MethodAnswers.of_place(way.name, place, references, as_answers, map_seconds)


def _as_query_answer(answer: Answer, way: OurWay) -> QueryAnswer:
    seconds = answer.seconds or dict.fromkeys(("match", "solve"), math.nan)  # where nobody measured
    return QueryAnswer(
        answer.T_solved if way.solver == "geometric" else answer.T_best,
        answer.reason,
        confidence=answer.confidence,
        accepted=float(answer.localized),
        num_inliers=answer.num_inliers,
        focal_px=float("nan") if answer.focal_px is None else answer.focal_px,
        network_seconds=sum(seconds.get(stage, 0.0) for stage in ("decode", "encode", "retrieve", "match")),
        solver_seconds=seconds.get("solve", 0.0),
    )


@dataclass(frozen=True)
class _MapPhoto:
    """A photo of the map as `MapFeatures` wants it; how long it takes to read it is written down."""

    photos: PosedPhotos
    row: int
    reading: list[float]

    @property
    def name(self) -> str:
        return self.photos.names[self.row]

    @property
    def T_world_cam(self) -> Pose:
        return self.photos.T_world_cam[self.row]

    @property
    def camera(self) -> AnyCamera:
        return self.photos.cameras[self.row]

    def read_image(self) -> UInt8[np.ndarray, "H W 3"]:
        begin = perf_counter()
        image = self.photos.read(self.row)
        self.reading.append(perf_counter() - begin)
        return image
