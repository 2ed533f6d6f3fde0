"""Videos are read alike by PyAV and by OpenCV; what one of them is not there for is skipped."""

import sys
from pathlib import Path

import numpy as np
import pytest

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.scenes.video import open_video

cv2 = pytest.importorskip("cv2", reason="no OpenCV: pip install 'relograph[geometry]'")
HEIGHT, WIDTH, RATE, NUM_FRAMES = 48, 64, 10, 25
QUARTER_TURN_CLOCKWISE = bytes.fromhex(
    "00000000 00010000 00000000 ffff0000 00000000 00000000 00000000 00000000 40000000"
)


def write_video(path: Path) -> Path:
    """Frames that get lighter from one to the next, with a black upper half."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), RATE, (WIDTH, HEIGHT))
    for index in range(NUM_FRAMES):
        pixels = np.full((HEIGHT, WIDTH, 3), 60 + 5 * index, dtype=np.uint8)
        pixels[: HEIGHT // 2] = 0
        writer.write(pixels)
    writer.release()
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "walk.mp4")


@pytest.fixture(params=["PyAV", "OpenCV"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "PyAV":
        pytest.importorskip("av", reason="no PyAV: pip install 'relograph[video]'")
    else:
        monkeypatch.setitem(sys.modules, "av", None)
    return request.param


def test_all_frames_come_in_their_order_with_their_times(video: Path, reader: str):
    opened = open_video(video)
    assert opened.duration_s == pytest.approx(NUM_FRAMES / RATE, abs=0.11)
    assert opened.num_frames() == pytest.approx(NUM_FRAMES, abs=1)
    frames = list(opened.frames())
    assert [frame.index for frame in frames] == list(range(NUM_FRAMES))
    assert [frame.timestamp_s for frame in frames] == pytest.approx(np.arange(NUM_FRAMES) / RATE, abs=2e-3)
    assert all(frame.pixels.shape == (HEIGHT, WIDTH, 3) for frame in frames)
    assert [frame.pixels[-8:].mean() for frame in frames] == pytest.approx(60 + 5 * np.arange(NUM_FRAMES), abs=6)
    assert max(frame.pixels[:8].mean() for frame in frames) < 12


@pytest.mark.parametrize(("fps", "expected"), [(2.5, [0, 4, 8, 12, 16, 20, 24]), (10, range(25)), (60, range(25))])
def test_as_many_frames_a_second_as_asked_for(video: Path, reader: str, fps: float, expected):
    assert [frame.index for frame in open_video(video).frames(fps)] == list(expected)
    assert open_video(video).num_frames(fps) == pytest.approx(len(list(expected)), abs=1)


def test_a_phone_that_was_held_upright_gives_upright_frames(video: Path, reader: str, tmp_path: Path):
    """The file's matrix says a quarter turn clockwise, so that what is on top comes to the right."""
    data = bytearray(video.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # version, flags, times, id, duration, layer, volume
    assert data[at : at + 4] == bytes.fromhex("00010000")
    data[at : at + 36] = QUARTER_TURN_CLOCKWISE
    turned = tmp_path / "turned.mp4"
    turned.write_bytes(data)
    pixels = next(open_video(turned).frames()).pixels
    assert pixels.shape == (WIDTH, HEIGHT, 3)
    assert pixels[:, -8:].mean() < 12
    assert pixels[:, :8].mean() == pytest.approx(60, abs=6)


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_what_is_no_video_is_said_in_one_line(reader: str, tmp_path: Path, content: bytes):
    path = tmp_path / "walk.mp4"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"walk\.mp4: expected (a video|data), found") as caught:
        list(open_video(path).frames())
    assert "\n" not in str(caught.value)
    assert "Errno" not in str(caught.value)


def test_a_missing_file_and_a_senseless_rate_are_said(video: Path, tmp_path: Path):
    with pytest.raises(DatasetError, match="found nothing there"):
        open_video(tmp_path / "none.mp4")
    for fps in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="frames a second above 0"):
            next(open_video(video).frames(fps))


def test_without_any_reader_the_extra_is_named(video: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"relograph\[video\]"):
        open_video(video)
