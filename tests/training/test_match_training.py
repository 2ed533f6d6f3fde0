"""A round of training MatchGNN: harder and harder rooms, weights to ship, and the next round from them."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from numpy.testing import assert_allclose

from relograph.configuration import config_from_dict, config_to_dict
from relograph.errors import ConfigError
from relograph.graphs.correspondence import Lenses, true_matches
from relograph.models.checkpoint import load_checkpoint
from relograph.models.match_gnn import COARSE_STRIDE, MatchAnswers, MatchGNN
from relograph.models.shipped import load_match_gnn
from relograph.rooms import RoomStream, StreamBatch
from relograph.rooms.photograph import Effects
from relograph.rooms.raycast import Kernels
from relograph.rooms.room_maps import FIRST_SEED
from relograph.rooms.textures import TextureAtlas
from relograph.training.loop import Validated, make_fabric, read_log
from relograph.training.match_training import (
    MatchSource,
    MatchTrainConfig,
    TrainingRecord,
    earlier_round,
    home_workers,
    make_ready,
    references_shown,
    shown_in_step,
    train_match_gnn,
    training_seed,
    validation_stream,
)
from relograph.training.match_validation import FIGURES, match_figures
from relograph.training.matching import LESSONS, MatchObjective
from relograph.training.presets import MATCHGNN, MATCHGNN_TINY

pytestmark = pytest.mark.usefixtures("few_textures")


@pytest.fixture(scope="module")
def first_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds") / "first"
    assert train_match_gnn(MATCHGNN_TINY, folder, fabric=make_fabric()).step == 4
    return folder


@pytest.mark.parametrize("number", [0, 1, 1_000_003, 10**15])
def test_a_training_has_seeds_of_its_own(number: int) -> None:
    assert 10**8 <= training_seed(number) < FIRST_SEED["validation"]  # a user's SevenRooms have smaller ones


def test_some_graphs_show_few_references() -> None:
    shown = references_shown(400, 7, seed=0, step=3)
    number = shown.sum(dim=1)
    assert set(number.tolist()) == set(range(1, 8))
    assert 0.5 < (number == 7).float().mean() < 0.65
    assert (shown[:, 0]).all()
    assert torch.equal(shown, references_shown(400, 7, seed=0, step=3))


def test_neighbours_get_harder_in_a_first_round(few_textures: TextureAtlas) -> None:
    config = replace(MATCHGNN_TINY, easy_overlap=0.7, easy_steps=2)
    source = MatchSource(config, torch.device("cpu"), few_textures)
    assert source.least_overlap(0) == 0.7
    assert_allclose(source.least_overlap(1), 0.4)
    assert_allclose([source.least_overlap(step) for step in (2, 4)], [0.1, 0.1])
    assert replace(source, round_idx=1).least_overlap(0) == 0.1


def test_a_round_in_bfloat16_has_numbers_for_losses(tmp_path: Path) -> None:
    config = replace(MATCHGNN_TINY, optim=replace(MATCHGNN_TINY.optim, precision="bfloat16", epochs=1))
    train_match_gnn(config, tmp_path, fabric=make_fabric("cpu", "bfloat16"))
    (row,) = read_log(tmp_path / "log.csv")
    assert all(math.isfinite(row[lesson]) for lesson in LESSONS)
    assert load_checkpoint(tmp_path / "last").tensors["model.encoder.stem.0.weight"].dtype == torch.float32


def test_no_round_shows_the_rooms_of_another(few_textures: TextureAtlas) -> None:
    source = MatchSource(MATCHGNN_TINY, torch.device("cpu"), few_textures)
    first, same, second = (
        next(replace(source, round_idx=round_idx).batches(0)).T_world_cam.t for round_idx in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.isin(second, first).any()


def test_the_log_has_every_lesson_and_figure(first_round: Path) -> None:
    log = read_log(first_round / "log.csv")
    assert [row["step"] for row in log] == [2, 4]
    assert all(row[lesson] is not None for row in log for lesson in LESSONS)
    for row in log:
        assert row["validation_loss"] == pytest.approx(row["settled_m"] + row["settled_deg"] / 30, rel=1e-6)
        assert 0 <= row["right_matches"] <= 1
    assert set(FIGURES) <= set(log[0])


def test_weights_are_the_mean_that_was_validated_best_in_half_precision(first_round: Path) -> None:
    shipped, best = load_match_gnn(first_round / "weights"), load_checkpoint(first_round / "best").tensors
    last = load_checkpoint(first_round / "last").tensors
    for name, weight in shipped.model.state_dict().items():
        assert_allclose(weight, best[f"model.{name}"], rtol=2e-3, atol=1e-6)
    assert any(not torch.equal(last[f"mean.{name}"], last[name]) for name in best)


def test_weights_know_what_made_them(first_round: Path) -> None:
    metadata = load_match_gnn(first_round / "weights").metadata
    log = read_log(first_round / "log.csv")
    record = metadata["training"]
    assert record["rounds"] == 1
    assert record["graphs"] in (4, 8)  # two steps of two graphs to the first validation, as many to the second
    assert record["seconds"] > 0
    assert metadata["validation"]["loss"] == pytest.approx(min(row["validation_loss"] for row in log), rel=1e-6)
    assert metadata["config"]["stream"]["image_height"] == 48
    assert metadata["textures"] is None
    assert metadata["provenance"]["device"] == "cpu"


def test_a_next_round_starts_from_the_weights_and_adds_to_their_record(first_round: Path, tmp_path: Path) -> None:
    earlier = earlier_round(first_round, MATCHGNN_TINY)
    optim = replace(MATCHGNN_TINY.optim, epochs=1, steps_per_epoch=1, learning_rate=1e-12)
    config = replace(MATCHGNN_TINY, optim=optim, seed=5)
    train_match_gnn(config, tmp_path / "next", fabric=make_fabric(), earlier=earlier)
    later = load_match_gnn(tmp_path / "next" / "weights")
    for (name, before), after in zip(
        earlier.model.named_parameters(), dict(later.model.named_parameters()).values(), strict=True
    ):
        assert_allclose(after.detach(), before.detach(), atol=1e-5, err_msg=name)
    first, both = TrainingRecord.of(earlier.metadata), TrainingRecord.of(later.metadata)
    assert (both.rounds, both.graphs) == (2, first.graphs + 2)
    assert both.seconds > first.seconds
    assert later.metadata["start"] == earlier.sha256


def test_weights_of_another_size_are_refused(first_round: Path) -> None:
    other = replace(MATCHGNN_TINY, model=replace(MATCHGNN_TINY.model, channels=32))
    with pytest.raises(ConfigError, match=r"expected a network with model\.channels=32, found 16\. Set "):
        earlier_round(first_round / "weights", other)


def test_a_round_that_was_stopped_goes_on_with_its_mean(tmp_path: Path) -> None:
    short = replace(MATCHGNN_TINY, optim=replace(MATCHGNN_TINY.optim, epochs=1))
    train_match_gnn(short, tmp_path, fabric=make_fabric())
    stopped = load_checkpoint(tmp_path / "last")
    standing = replace(MATCHGNN_TINY, optim=replace(MATCHGNN_TINY.optim, learning_rate=1e-12))
    state = train_match_gnn(standing, tmp_path, fabric=make_fabric())
    went_on = load_checkpoint(tmp_path / "last")
    assert (state.step, stopped.metadata["step"]) == (4, 2)
    assert went_on.metadata["seconds"] > stopped.metadata["seconds"] > 0
    # Two further steps, whose weights stay where they are: the mean keeps 3/12 of its distance to them, then 4/13.
    name = "model.encoder.merge_fine.3.weight"
    before, after, weight = stopped.tensors[f"mean.{name}"], went_on.tensors[f"mean.{name}"], stopped.tensors[name]
    assert (before - weight).abs().max() > 1e-5
    assert_allclose(after - weight, (before - weight) * 3 / 12 * 4 / 13, atol=1e-7)


def test_validation_shows_queries_as_users_take_them(few_textures: TextureAtlas) -> None:
    stream = validation_stream(MATCHGNN.stream)
    assert (stream.useless_share, stream.elsewhere_share, stream.portrait_share, stream.turned_share) == (0, 0, 0, 0)
    assert stream.grey_share == stream.spoilt_share == 0
    assert stream.homes_renewed_per_batch == stream.unseen_graphs == 0


class KnowsAll(MatchObjective):
    """Answers with the truth, but for matches that are off to the right by some pixels."""

    def __init__(self, off_px: float, confidence: float) -> None:
        super().__init__(MatchGNN(MATCHGNN_TINY.model))
        self.off_px, self.confidence = off_px, confidence

    def answer(self, batch: StreamBatch) -> MatchAnswers:
        answers = super().answer(batch)
        truth = true_matches(batch.depth_m, batch.T_world_cam, Lenses(batch.K, batch.distortion), COARSE_STRIDE)
        matches = replace(
            answers.matches,
            xy=truth.xy + torch.tensor([self.off_px, 0.0]),
            confidence=torch.full_like(answers.matches.confidence, self.confidence),
        )
        image_hw = (batch.depth_m.shape[2], batch.depth_m.shape[3])
        flow = self.model.flow(matches, image_hw, image_hw, None, None)
        return replace(answers, T_world_query=batch.T_world_cam[:, 0], matches=matches, flow=flow)


@pytest.mark.parametrize(
    ("off_px", "confidence", "right", "confident_px"),
    [(0.5, 0.9, 1.0, 0.5), (5.0, 0.9, 0.0, 5.0), (0.5, 0.1, 1.0, None)],
)
def test_figures_are_those_of_the_answers(
    few_textures: TextureAtlas, off_px: float, confidence: float, right: float, confident_px: float | None
) -> None:
    (batch,) = islice(RoomStream(validation_stream(MATCHGNN_TINY.stream), atlas=few_textures), 1)
    figures = match_figures(KnowsAll(off_px, confidence), [batch], [batch]).figures
    assert tuple(figures) == FIGURES
    assert figures["median_m"] == 0
    assert figures["median_deg"] < 0.1
    assert 0 < figures["settled_m"] < 0.3  # matches and a likely lens have a say here, too
    assert (figures["turned_m"], figures["turned_deg"]) == (figures["settled_m"], figures["settled_deg"])
    assert figures["right_matches"] == right
    assert figures["confident_px"] == (None if confident_px is None else pytest.approx(confident_px, rel=1e-4))


def test_turned_queries_come_after_those_that_every_round_is_validated_with(
    monkeypatch: pytest.MonkeyPatch, few_textures: TextureAtlas, tmp_path: Path
) -> None:
    seen: list[list[StreamBatch]] = []

    def watched(objective: MatchObjective, *batches: list[StreamBatch]) -> Validated:
        seen.extend(batches[:2])
        return match_figures(objective, *batches)

    monkeypatch.setattr("relograph.training.match_training.match_figures", watched)
    stream = replace(MATCHGNN_TINY.stream, turned_share=0.5, any_roll_share=0.0)
    train_match_gnn(
        replace(MATCHGNN_TINY, stream=stream, optim=replace(MATCHGNN_TINY.optim, epochs=1)),
        tmp_path,
        fabric=make_fabric(),
    )
    (held,), (turned,) = seen
    (as_before,) = islice(RoomStream(validation_stream(replace(stream, turned_share=0.0)), atlas=few_textures), 1)
    assert torch.equal(held.T_world_cam.t, as_before.T_world_cam.t)
    assert torch.equal(held.T_world_cam.R, as_before.T_world_cam.R)
    down = [batch.T_world_cam.R[:, :, 2, 1] for batch in (held, turned)]  # how far down an image's own down points
    assert (down[0] < -0.5).all()
    assert (down[1][:, 0] > -0.5).all()
    assert (down[1][:, 1:] < -0.5).all()


def test_without_turned_queries_there_are_no_figures_of_them(few_textures: TextureAtlas) -> None:
    (batch,) = islice(RoomStream(validation_stream(MATCHGNN_TINY.stream), atlas=few_textures), 1)
    figures = match_figures(KnowsAll(0.5, 0.9), [batch]).figures
    assert (figures["turned_m"], figures["turned_deg"]) == (None, None)
    assert figures["settled_m"] is not None


@pytest.mark.parametrize(("lesson", "share"), [("turned_share", 0.15), ("grey_share", 0.1), ("spoilt_share", 0.1)])
def test_settings_of_rounds_before_a_lesson_say_so(lesson: str, share: float) -> None:
    settings = config_to_dict(MATCHGNN)
    assert isinstance(settings["stream"], dict)
    del settings["stream"][lesson]
    assert getattr(config_from_dict(MatchTrainConfig, settings).stream, lesson) == 0
    assert getattr(MATCHGNN.stream, lesson) == share


def test_only_a_gpu_has_homes_made_ahead() -> None:
    assert home_workers(torch.device("cpu")) == 0
    assert home_workers(torch.device("cuda")) >= 1


@pytest.mark.parametrize(
    ("part", "values"),
    [("stream", {"image_height": 100}), ("stream", {"num_nodes": 1}), ("optim", {"steps_per_epoch": 0})],
)
def test_rounds_that_cannot_be_are_refused(part: str, values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{part}.{next(iter(values))}"):
        replace(MATCHGNN_TINY, **{part: replace(getattr(MATCHGNN_TINY, part), **values)})


def test_a_cpu_trains_with_plain_kernels() -> None:
    """A compiler may be missing there."""
    objective = MatchObjective(MatchGNN(MATCHGNN_TINY.model))
    make_ready(objective, torch.device("cpu"), compile_parts=False)
    assert objective.model.matcher.kernels is None
    assert objective.ray_kernels == Kernels()


def test_the_parts_that_are_compiled_are_those_that_are_trained(
    monkeypatch: pytest.MonkeyPatch, few_textures: TextureAtlas
) -> None:
    ran: set[str] = set()

    def compiled(function: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            ran.add(function.__qualname__)
            return function(*arguments)

        return run

    monkeypatch.setattr("relograph.training.match_training.compiled", compiled)
    objective = MatchObjective(MatchGNN(MATCHGNN_TINY.model))
    names = set(objective.state_dict())
    make_ready(objective, torch.device("cpu"), compile_parts=True)
    (batch,) = islice(RoomStream(replace(MATCHGNN_TINY.stream, effects=Effects.none()), atlas=few_textures), 1)
    objective(shown_in_step(MATCHGNN_TINY, batch, 0)).backward()
    of_matcher = {"Matcher.show", "Matcher.describe"}
    parts = ("DenseEncoder", "Descriptor", "EdgeNetwork", "EdgeMessages")
    assert ran == of_matcher | {f"{part}.forward" for part in parts}
    assert set(objective.state_dict()) == names
