import pytest

from relograph.errors import DatasetError
from relograph.scenes.photo_folder import list_photos


def test_photos_come_in_the_order_of_their_numbers_from_all_folders(tmp_path):
    for name in ("b/IMG_10.JPG", "b/IMG_9.jpg", "a.png", "a.depth.png", ".hidden.png", ".git/c.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_photos(tmp_path) == ["a.png", "b/IMG_9.jpg", "b/IMG_10.JPG"]


def test_a_folder_without_photos_and_a_file_are_said(tmp_path):
    (tmp_path / "IMG_1.HEIC").touch()
    with pytest.raises(DatasetError, match="HEIC, to JPEG"):
        list_photos(tmp_path)
    with pytest.raises(DatasetError, match="expected a folder of photos, found a file"):
        list_photos(tmp_path / "IMG_1.HEIC")
    with pytest.raises(DatasetError, match="expected a folder of photos, found nothing"):
        list_photos(tmp_path / "none")
