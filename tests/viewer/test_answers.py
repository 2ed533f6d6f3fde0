"""Answers beside the truth: what is said, drawn and kept of those that were not localized."""

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from relograph.geometry import Pose
from relograph.localization.localizer import Answer
from relograph.maps import Map
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import load_match_gnn, save_match_gnn
from relograph.scenes import Scene
from relograph.scenes.frame import FileSource, Frame
from relograph.training.presets import MATCHGNN_TINY
from relograph.viewer.answers import (
    ScoredAnswer,
    answers_table,
    demonstrate,
    draw_answers_from_above,
    map_of_demo,
    summary,
    write_answers_page,
)

SMALL = MATCHGNN_TINY.model


def at(x: float, degrees: float = 0.0) -> Pose:
    turn = torch.tensor([0.0, torch.pi * degrees / 180, 0.0], dtype=torch.float64)
    return Pose.from_axis_angle(turn, torch.tensor([x, 0.0, 0.0], dtype=torch.float64))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    generator = torch.Generator().manual_seed(0)
    frames = []
    for idx in range(6):
        photo = tmp_path / f"{idx}.png"
        pixels = torch.randint(256, (48, 64, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(photo)
        split = "train" if idx < 4 else "test"
        frames.append(Frame(photo.name, at(0.1 * idx, idx), FileSource(photo), split=split))
    return Scene("room", tmp_path, "7-Scenes", tuple(frames))


def answered(frame: Frame, T_world_cam: Pose | None, copied: Pose | None) -> ScoredAnswer:
    found = T_world_cam is not None
    return ScoredAnswer(frame, Answer(T_world_cam, found, 0.9 * found, "" if found else "Nothing matches."), copied)


def moved(frame: Frame, metres: float) -> Pose:
    """The frame's pose a little higher."""
    T_world_cam = frame.T_world_cam
    return Pose(T_world_cam.R, T_world_cam.t + torch.tensor([0.0, metres, 0.0], dtype=torch.float64))


def test_errors_are_those_of_the_answers_and_of_copying(scene: Scene):
    first, second = scene.test
    scored = [answered(first, moved(first, 0.03), at(0.2, 4)), answered(second, None, at(0.1, 3))]
    assert scored[0].caption == ("4.png: 0.030 m / 0.00° (90% sure). Copying the most similar photo: 0.200 m / 0.00°.")
    assert scored[1].caption == (
        "5.png: not localized (0% sure). Nothing matches. Copying the most similar photo: 0.400 m / 2.00°."
    )
    assert answers_table(scored).splitlines() == [
        "photo  answer                      copying the most similar photo",
        "4.png  0.030 m / 0.00° (90% sure)  0.200 m / 0.00°",
        "5.png  not localized (0% sure)     0.400 m / 2.00°",
    ]
    assert summary(scored).splitlines()[:3] == [
        "localized  1 of 2 photos, median error 0.030 m / 0.00°",
        "copying    the pose of the most similar photo instead: median error 0.300 m / 1.00°",
        "refused    1 of 2 photos, the first: Nothing matches.",
    ]


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ((None, None), "verdict    these weights localize nothing here"),
        ((at(0.44, 5), at(0.53, 7)), "verdict    8.6x nearer and 2.3x better turned than copying"),
        ((at(1.2, 5), at(0.53, 6)), "verdict    no better than copying: these weights have not learned to localize"),
        ((at(0.41, 20), at(0.53, 60)), "verdict    no better than copying: these weights have not learned to localize"),
    ],
)
def test_it_is_said_plainly_whether_the_answers_are_any_good(
    scene: Scene, answers: tuple[Pose | None, ...], verdict: str
):
    scored = [answered(frame, T, at(0.15, 1)) for frame, T in zip(scene.test, answers, strict=True)]
    assert summary(scored).splitlines()[-1] == verdict


def test_photos_that_were_compared_with_none_are_told_too(scene: Scene, tmp_path: Path):
    scored = [answered(frame, None, None) for frame in scene.test]
    assert "nothing to copy" in answers_table(scored)
    assert "copying" not in summary(scored)
    draw_answers_from_above("room", list(scene.train), scored, tmp_path / "answers.png")
    write_answers_page("room", list(scene.train), scored, tmp_path / "answers.html")


def test_pictures_are_drawn_whether_photos_were_localized_or_not(scene: Scene, tmp_path: Path):
    first, second = scene.test
    for number, answers in enumerate(([at(0.41, 4), None], [None, None], [at(0.41, 4), at(500, 5)])):
        scored = [answered(frame, T, at(0, 0)) for frame, T in zip((first, second), answers, strict=True)]
        picture, page = tmp_path / f"{number}.answers.png", tmp_path / f"{number}.html"
        draw_answers_from_above("room", list(scene.train), scored, picture)
        write_answers_page("room", list(scene.train), scored, page)
        with Image.open(picture) as opened:
            assert opened.size == (1320, 704)
        assert ("not localized (0% sure). Nothing matches." in page.read_text()) == (None in answers)


def test_a_network_that_learned_nothing_is_shown_as_it_is(scene: Scene, tmp_path: Path):
    torch.manual_seed(0)
    save_match_gnn(tmp_path / "weights", MatchGNN(SMALL).eval(), {})
    said = demonstrate(scene, load_match_gnn(tmp_path / "weights"), tmp_path / "demo", tmp_path / "room.map", 4, 2)
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["photo", "4.png", "5.png"]
    assert "of 2 photos" in said
    assert "verdict" in said
    assert "these weights are not calibrated: how sure they are is a guess" in said
    for name in ("answers_from_above.png", "answers.html"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
        assert name in said


def test_the_map_stays_and_is_used_again_by_the_same_weights_only(scene: Scene, tmp_path: Path):
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_match_gnn(tmp_path / f"weights-{seed}", MatchGNN(SMALL).eval(), {})
        networks.append(load_match_gnn(tmp_path / f"weights-{seed}"))
    where = tmp_path / "room.map"
    said = demonstrate(scene, networks[0], tmp_path / "demo", where, 4, 2)
    assert said.splitlines()[-1] == f"map        {where}"
    assert [frame.name for frame in Map.open(where)] == ["0.png", "1.png", "2.png", "3.png"]
    changes = len(Map.open(where).changes())

    assert map_of_demo(where, list(scene.train), networks[0]).frames == Map.open(where).frames
    assert len(Map.open(where).changes()) == changes
    assert map_of_demo(where, list(scene.train), networks[1]).settings.network_sha256 == networks[1].sha256
    assert len(Map.open(where)) == 4


def test_without_the_solver_it_is_said_whose_poses_they_are(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "poselib", None)
    save_match_gnn(tmp_path / "weights", MatchGNN(SMALL).eval(), {})
    said = demonstrate(scene, load_match_gnn(tmp_path / "weights"), tmp_path / "demo", tmp_path / "room.map", 4, 2)
    assert "mind       the poses are the network's own: " in said
    assert "pip install 'relograph[geometry]'" in said
