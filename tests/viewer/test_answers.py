"""Answers beside the truth: what is said, drawn and kept of those that were not localized."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from relograph.geometry import Pose
from relograph.localization.localizer import Answer
from relograph.models.match_gnn import MatchGNN
from relograph.models.shipped import load_match_gnn, save_match_gnn
from relograph.scenes import Scene
from relograph.scenes.frame import FileSource, Frame
from relograph.training.presets import MATCHGNN_TINY
from relograph.viewer.answers import (
    ScoredAnswer,
    demonstrate,
    draw_answers_from_above,
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


def answered(frame: Frame, T_world_cam: Pose | None, copied: Pose) -> ScoredAnswer:
    found = T_world_cam is not None
    return ScoredAnswer(frame, Answer(T_world_cam, found, 0.9 * found, "" if found else "Nothing matches."), copied)


def test_errors_are_those_of_the_answers_and_of_copying(scene: Scene):
    first, second = scene.test
    moved = Pose(first.T_world_cam.R, first.T_world_cam.t + torch.tensor([0.0, 0.03, 0.0], dtype=torch.float64))
    scored = [answered(first, moved, at(0.2, 4)), answered(second, None, at(0.1, 3))]
    assert scored[0].caption == "4.png: 0.030 m, 0.00°, confidence 0.90"
    assert scored[1].caption == "5.png: not localized. Nothing matches."
    localized, copying = summary(scored).splitlines()
    assert localized == "localized  1 of 2 photos, median error 0.030 m / 0.00°"
    assert copying.endswith("median error 0.300 m / 1.00°")  # of 0.2 m, 0° and 0.4 m, 2°


def test_pictures_are_drawn_whether_photos_were_localized_or_not(scene: Scene, tmp_path: Path):
    first, second = scene.test
    for number, answers in enumerate(([at(0.41, 4), None], [None, None], [at(0.41, 4), at(0.52, 5)])):
        scored = [answered(frame, T, at(0, 0)) for frame, T in zip((first, second), answers, strict=True)]
        picture, page = tmp_path / f"{number}.answers.png", tmp_path / f"{number}.html"
        draw_answers_from_above("room", list(scene.train), scored, picture)
        write_answers_page("room", list(scene.train), scored, page)
        with Image.open(picture) as opened:
            assert opened.size == (1320, 704)
        assert ("not localized. Nothing matches." in page.read_text()) == (None in answers)


def test_a_network_that_learned_nothing_is_shown_as_it_is(scene: Scene, tmp_path: Path):
    torch.manual_seed(0)
    save_match_gnn(tmp_path / "weights", MatchGNN(SMALL).eval(), {})
    said = demonstrate(scene, load_match_gnn(tmp_path / "weights"), tmp_path / "demo", 4, 2)
    assert [line.split(":")[0] for line in said.splitlines()[:2]] == ["4.png", "5.png"]
    assert "of 2 photos" in said
    for name in ("answers_from_above.png", "answers.html"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
        assert name in said
