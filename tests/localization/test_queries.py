from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relograph.errors import ConfigError, DatasetError
from relograph.localization.queries import open_queries


def photo(path: Path, size_wh: tuple[int, int] = (40, 30), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size_wh).save(path, **options)
    return path


def test_files_and_folders_come_in_their_order_with_upright_sizes(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    photo(tmp_path / "folder" / "b" / "10.jpg", exif=exif)
    photo(tmp_path / "folder" / "b" / "9.jpg")
    alone = photo(tmp_path / "z.png")
    queries = open_queries([alone, tmp_path / "folder"])
    assert len(queries) == 3
    assert [(query.name, query.size_wh) for query in queries] == [
        ("z.png", (40, 30)),
        ("b/9.jpg", (40, 30)),
        ("b/10.jpg", (30, 40)),
    ]


def test_photos_of_one_name_are_called_by_their_paths(tmp_path):
    paths = [photo(tmp_path / folder / "a.png") for folder in ("x", "y")]
    assert [query.name for query in open_queries(paths)] == [path.as_posix() for path in paths]


def test_a_damaged_photo_is_a_query_without_a_size(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no photo")
    (query,) = open_queries([tmp_path / "a.jpg"])
    assert query.size_wh is None


def test_frames_of_a_video_have_names_times_and_sizes(tmp_path):
    cv2 = pytest.importorskip("cv2", reason="no OpenCV: pip install 'relograph[geometry]'")
    writer = cv2.VideoWriter(str(tmp_path / "walk.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    for grey in range(0, 100, 10):
        writer.write(np.full((48, 64, 3), grey, dtype=np.uint8))
    writer.release()
    queries = list(open_queries([photo(tmp_path / "a.png"), tmp_path / "walk.mp4"], fps=2))
    assert [query.name for query in queries] == ["a.png", "walk.mp4/frame-000000", "walk.mp4/frame-000005"]
    assert [query.video for query in queries] == [None, "walk.mp4", "walk.mp4"]
    assert queries[2].timestamp_s == pytest.approx(0.5, abs=2e-3)
    assert queries[2].size_wh == (64, 48)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "walk.mp4").write_bytes((tmp_path / "walk.mp4").read_bytes())
    with pytest.raises(ConfigError, match="two of one name"):
        open_queries([tmp_path / "walk.mp4", tmp_path / "other" / "walk.mp4"])


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DatasetError, match="found nothing"):
        open_queries([tmp_path / "none.jpg"])
