"""What is planned for each experiment of the paper: which trainings, shared by which tables, tested on what."""

from dataclasses import replace

import pytest

from relograph.errors import ConfigError
from relograph.evaluation.experiments import EXPERIMENTS, Evaluation, Job, Plan, Row, experiments_called
from relograph.training.presets import PAPER_7SCENES, PRESETS, TINY

SCENES = ("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs")
PLAN = Plan(TINY, SCENES, "stairs")


def jobs(name: str, plan: Plan = PLAN) -> dict[str, Job]:
    return {job.name: job for job in EXPERIMENTS[name].jobs(plan)}


def evaluations(name: str, plan: Plan = PLAN) -> list[Evaluation]:
    return [evaluation for row in EXPERIMENTS[name].rows(plan) for run in row.runs for evaluation in run]


def row(name: str, method: str, plan: Plan = PLAN) -> Row:
    return next(row for row in EXPERIMENTS[name].rows(plan) if row.method == method)


def test_one_training_on_all_scenes_serves_six_experiments():
    (ours,) = [job for job in jobs("table1").values() if job.name == "ours-camera"]
    for name in ("table4", "averaging", "aggregation", "saliency", "qualitative"):
        assert ours in jobs(name).values(), name


def test_every_table_begins_with_copying_the_nearest_reference():
    for name, experiment in EXPERIMENTS.items():
        if experiment.rows(PLAN):
            assert experiment.rows(PLAN)[0].method == "NetVLAD (copy top-1)", name


def test_every_table_of_the_paper_stands_beside_ours():
    published = {experiment.published for experiment in EXPERIMENTS.values()} - {None}
    assert published == {"table1", "table2", "table3", "table4", "single-scene", "averaging", "stride"}


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "single-scene", "averaging", "stride"])
def test_every_row_of_a_table_answers_every_scene_once(name: str):
    for table_row in EXPERIMENTS[name].rows(PLAN):
        for run in table_row.runs:
            assert sorted(scene for evaluation in run for scene in evaluation.scenes) == sorted(SCENES)


def test_a_network_is_never_trained_on_the_scene_that_it_is_said_not_to_know():
    networks = [evaluation for evaluation in evaluations("table2") if isinstance(evaluation.method, Job)]
    assert len(networks) == 2 * len(SCENES)
    for evaluation in networks:
        assert isinstance(evaluation.method, Job)
        assert set(evaluation.method.scenes) == set(SCENES) - set(evaluation.scenes)
    assert {evaluation.method.config.model.target for evaluation in networks} == {"world", "camera"}


def test_absolute_networks_are_trained_a_scene_each_on_as_many_images_as_ours():
    posenet = jobs("table1", Plan(PAPER_7SCENES, SCENES, "stairs"))["posenet-chess"]
    ours = PAPER_7SCENES
    assert posenet.scenes == ("chess",)
    assert posenet.config.graph.selection == "alone"
    assert posenet.config.optim.batch_size == ours.optim.batch_size * ours.graph.num_nodes
    # An epoch shows every frame once. In ours each is once a query and seven times, on average, a reference.
    assert posenet.config.optim.epochs == ours.optim.epochs * ours.graph.num_nodes


def test_a_fixed_number_of_steps_is_the_same_for_absolute_networks():
    plan = Plan(PRESETS["rooms"], SCENES, "stairs")
    optim = jobs("table1", plan)["atloc-stairs"].config.optim
    assert optim.epochs * optim.steps_per_epoch == plan.base.optim.epochs * plan.base.optim.steps_per_epoch


def test_retrieval_that_learns_from_poses_is_left_to_networks_that_see_pairs():
    plan = Plan(replace(TINY, retrieval=replace(TINY.retrieval, loss="pose")), SCENES, "stairs")
    assert plan.ours().config.retrieval.loss == "pose"
    assert plan.absolute("atloc", "chess").config.retrieval.loss == "none"


def test_the_ablation_changes_one_thing_at_a_time():
    base = TINY
    ablation = jobs("table4")
    assert ablation["baseline1-camera"].config == replace(base, model=replace(base.model, kind="pair_mlp"))
    seeds = [ablation[f"baseline2-camera-seed{seed}"].config for seed in range(3)]
    assert seeds == [replace(base, graph=replace(base.graph, selection="random"), seed=seed) for seed in range(3)]
    sequence = ablation["baseline3-camera"].config
    assert (sequence.model.kind, sequence.graph.selection) == ("sequence_gnn", "sequence")
    assert row("table4", "Baseline-3: sequence of 4").num_test_frames == 4
    assert len(row("table4", "Baseline-2: mean of 3 seeds").runs) == 3


def test_strides_and_rounds_share_the_single_scene_networks():
    assert set(jobs("single-scene").values()) <= set(jobs("stride").values())
    assert {job.config.graph.stride for job in jobs("stride").values()} == {1, TINY.graph.stride}
    rounds = jobs("rounds")
    assert [job.config.model.rounds for job in rounds.values()] == [1, 2, 3, 4]
    assert {job.scenes for job in rounds.values()} == {("stairs",)}
    assert set(rounds.values()) & set(jobs("single-scene").values())


def test_cambridge_takes_every_third_neighbour_and_scales_translations():
    for job in jobs("table3").values():
        assert job.config.data.metres_per_unit == 0
    assert jobs("table3")["ours-world"].config.graph.stride == 3


def test_what_matters_most_is_trained_first():
    names = list(jobs("table1"))
    assert names[:2] == ["ours-camera", "ours-world"]
    assert len(names) == 2 + 2 * len(SCENES)
    assert next(iter(jobs("table4"))) == "ours-camera"
    assert [name.startswith("ours-camera") for name in jobs("table2")] == [True] * 7 + [False] * 7
    assert next(iter(jobs("saliency"))) == "ours-camera"


def test_settings_of_single_scenes_are_theirs_alone():
    plan = replace(PLAN, settings_of_one_scene=("optim.epochs=7",))
    epochs = {job.name: job.config.optim.epochs for job in EXPERIMENTS["table1"].jobs(plan)}
    assert epochs["ours-camera"] == TINY.optim.epochs
    # As many images as ours on that scene: each is once a query there and three times, on average, a reference.
    assert jobs("single-scene", plan)["single-camera-fire-stride2-rounds2"].config.optim.epochs == 7
    assert epochs["posenet-fire"] == 7 * TINY.graph.num_nodes


def test_a_batch_of_single_images_has_as_many_as_one_of_graphs_whatever_is_set():
    plan = replace(PLAN, settings_of_one_scene=("optim.batch_size=3",))
    assert jobs("table1", plan)["atloc-fire"].config.optim.batch_size == 3 * TINY.graph.num_nodes


def test_settings_of_single_scenes_cannot_ask_for_other_images():
    with pytest.raises(ConfigError, match=r"leave data\.\* and retrieval\.\* alone"):
        replace(PLAN, settings_of_one_scene=("data.image_height=64",))


def test_a_single_scene_cannot_be_left_out():
    with pytest.raises(ConfigError, match="found only chess"):
        EXPERIMENTS["table2"].jobs(Plan(TINY, ("chess",), "chess"))


def test_the_one_scene_must_be_among_the_scenes():
    with pytest.raises(ConfigError, match="found 'kitchen'"):
        Plan(TINY, SCENES, "kitchen")


def test_all_is_every_experiment_that_fits_the_data():
    assert [experiment.name for experiment in experiments_called(["all", "table1"])] == [
        *("table1", "table2", "table4", "single-scene", "averaging", "stride", "rounds", "aggregation"),
        *("saliency", "qualitative"),
    ]
    names = {experiment.name for experiment in experiments_called(["all"], dataset="Cambridge Landmarks")}
    assert "table3" in names
    assert "table1" not in names


def test_an_unknown_experiment_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"found 'tabel1'\. Did you mean 'table1'\?"):
        experiments_called(["tabel1"])
