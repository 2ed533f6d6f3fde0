import pytest

from relograph.errors import DatasetError, MissingExtraError
from relograph.scenes import photo_folder
from relograph.scenes.photo_folder import list_photos


def test_photos_come_in_the_order_of_their_numbers_from_all_folders(tmp_path):
    for name in (
        "b/IMG_10.JPG",
        "b/IMG_9.jpg",
        "b/IMG_11.HEIC",
        "a.png",
        "a.depth.png",
        ".hidden.png",
        ".git/c.png",
        "notes.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_photos(tmp_path) == ["a.png", "b/IMG_9.jpg", "b/IMG_10.JPG", "b/IMG_11.HEIC"]


def test_a_folder_without_photos_and_a_file_are_said(tmp_path):
    (tmp_path / "IMG_1.DNG").touch()
    with pytest.raises(DatasetError, match=r"found none\. Convert others to JPEG"):
        list_photos(tmp_path)
    with pytest.raises(DatasetError, match="expected a folder of photos, found a file"):
        list_photos(tmp_path / "IMG_1.DNG")
    with pytest.raises(DatasetError, match="expected a folder of photos, found nothing"):
        list_photos(tmp_path / "none")


def test_heic_without_its_decoder_is_told_before_any_photo_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(photo_folder, "installed_version", lambda _: None)
    (tmp_path / "IMG_1.jpg").touch()
    assert list_photos(tmp_path) == ["IMG_1.jpg"]
    (tmp_path / "IMG_2.HEIC").touch()
    with pytest.raises(MissingExtraError, match=r"IMG_2\.HEIC: a photo in HEIC .*relograph\[heic\]"):
        list_photos(tmp_path)
