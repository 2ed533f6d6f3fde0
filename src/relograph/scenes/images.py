"""Pixels: whatever a photo's file holds becomes 8-bit RGB, upright, or one clear line about what is wrong with it."""

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, cast

import numpy as np
from jaxtyping import UInt8, UInt16
from PIL import ExifTags, Image, ImageFile
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

from relograph.environment import installed_version
from relograph.errors import DatasetError, MissingExtraError
from relograph.geometry import Camera, Pose

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM")
"""What photos may be, by Pillow's names; HEIF, as phones write it, where the extra heic brings its decoder."""
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
MAX_PIXELS = 200_000_000
"""The largest phone sensors have this many; what claims more is a decompression bomb."""
MIN_SIDE_PX = 8
"""A photo with a shorter side shows nothing that could be localized: it is a placeholder."""

DIAGONAL_OF_35MM_FILM_MM = math.hypot(36.0, 24.0)

# Counter-clockwise quarter turns that bring a stored photo upright, by EXIF orientation; 2, 4, 5 and 7 mirror it.
_QUARTER_TURNS = {1: 0, 3: 2, 6: 3, 8: 1}
# Pillow's names for 16-bit grey; "I" is what it makes of 16-bit PPM and of older PNG.
_SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


class TooManyPixelsError(DatasetError):
    """A photo that is larger than any camera's."""


@dataclass(frozen=True)
class ImageHeader:
    """What a photo's file says before its pixels."""

    stored_width: int
    stored_height: int
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 is upright already."""
    focal_px: float | None = None
    """Focal length by EXIF in pixels of this photo; None where EXIF does not tell."""

    @property
    def upright_size_wh(self) -> tuple[int, int]:
        """Width and height in pixels once the orientation is applied."""
        size = (self.stored_width, self.stored_height)
        return size if self.orientation <= 4 else size[::-1]


def read_header(file: io.BufferedIOBase, where: str) -> ImageHeader:
    """Size, orientation and focal length of a photo, without decoding its pixels."""
    return _header(_open(file, where))


def decode_image(data: bytes, where: str, *, covering_hw: tuple[int, int] | None = None) -> UInt8[np.ndarray, "H W 3"]:
    """The photo in RGB, upright.

    16-bit photos are scaled to 8 bits by their high byte, grey ones are repeated in three channels, CMYK is
    converted without a colour profile, and alpha is dropped: the colours under it stay as they are stored.

    Where a photo needs only to cover a height and width, upright, a JPEG may come at a half, a quarter or an eighth of
    its size, for which much less of it is decoded.
    """
    image = _open(io.BytesIO(data), where)
    # Pillow turns a TIFF upright by itself while it decodes it.
    orientation = 1 if isinstance(image, TiffImageFile) else _header(image).orientation
    if covering_hw is not None:
        _decode_less(image, covering_hw if orientation <= 4 else covering_hw[::-1])
    return _upright(rgb_pixels(image, where), orientation)


def rgb_pixels(image: Image.Image, where: str) -> UInt8[np.ndarray, "H W 3"]:
    """What is stored of an image, whatever its mode, as 8-bit RGB; `decode_image` says how."""
    if image.mode in _SIXTEEN_BIT_MODES:
        high_byte = (_stored_uint16(image, where) >> 8).astype(np.uint8)
        return np.repeat(high_byte[..., None], 3, axis=-1)
    if image.mode == "F":
        raise DatasetError(f"{where}: expected 8 or 16 bits a channel, found floats. Save the photo as PNG or JPEG.")
    with _decoding(where):
        return np.array(image.convert("RGB"))  # a copy: what Pillow lends is read-only


def _decode_less(image: ImageFile.ImageFile, covering_hw: tuple[int, int]) -> None:
    """Has a JPEG decoded at the smallest size that covers another; other formats know no such thing."""
    for factor in (8, 4, 2):
        width, height = image.width // factor, image.height // factor
        # Whole pixels only: a border that is half a pixel wide would move all others.
        is_whole = (width * factor, height * factor) == image.size
        if is_whole and height >= covering_hw[0] and width >= covering_hw[1]:
            image.draft(None, (width, height))
            return


def decode_depth(data: bytes, where: str) -> UInt16[np.ndarray, "H W"]:
    """The stored whole numbers of a 16-bit depth map, as they are."""
    image = _open(io.BytesIO(data), where)
    if image.mode not in _SIXTEEN_BIT_MODES:
        raise DatasetError(
            f"{where}: expected a depth map of 16-bit grey values, found an image of mode {image.mode}. "
            "Export the depth as 16-bit PNG."
        )
    return _stored_uint16(image, where)


def turn_upright(
    T_world_cam: Pose, camera: Camera | None, header: ImageHeader, where: str, *, assume_stored: bool = True
) -> tuple[Pose, Camera | None, int]:
    """Pose and camera of the upright photo, and the counter-clockwise quarter turns that made it upright.

    A file's poses and intrinsics may describe the photo's pixels as stored (COLMAP looks at no EXIF orientation) or
    upright (OpenCV applies it). The camera's size tells which, where it fits only one of the two; where it does not,
    `assume_stored` decides.
    """
    stored, upright = (header.stored_width, header.stored_height), header.upright_size_wh
    size = None if camera is None else (camera.width, camera.height)
    described_as_stored = size == stored if stored != upright and size in (stored, upright) else assume_stored
    if header.orientation == 1 or not described_as_stored:
        return T_world_cam, camera, 0
    turns = _QUARTER_TURNS.get(header.orientation)
    if turns is None:
        raise DatasetError(
            f"{where}: expected a photo that is at most turned, found the mirroring EXIF orientation "
            f"{header.orientation}. Save the photo without it."
        )
    # Axes turn with the picture: one turn takes the ray (x, y, 1) to (y, -x, 1), see Camera.rotated_90.
    cos, sin = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[turns]
    R_stored_upright = [[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]
    T_stored_upright = Pose.from_rotation_and_translation(R_stored_upright, [0.0, 0.0, 0.0])
    return T_world_cam @ T_stored_upright, camera.rotated_90(turns) if camera else None, turns


def exif_focal_px(exif: Image.Exif, width: int, height: int) -> float | None:
    """The focal length in pixels of a photo of that size, or None where EXIF does not tell.

    FocalLengthIn35mmFilm is taken as an angle over the diagonal, as the camera makers' association defines it.
    Otherwise FocalLength and FocalPlaneXResolution give it; they belong to the photo as it left the camera, so a
    photo that was scaled down since is followed by its PixelXDimension and PixelYDimension.
    """
    tags = exif.get_ifd(ExifTags.IFD.Exif)
    focal_35mm = _positive(tags.get(ExifTags.Base.FocalLengthIn35mmFilm))
    if focal_35mm is not None:
        return _plausible_focal(focal_35mm * math.hypot(width, height) / DIAGONAL_OF_35MM_FILM_MM, width, height)
    focal_mm = _positive(tags.get(ExifTags.Base.FocalLength))
    pixels_per_unit = _positive(tags.get(ExifTags.Base.FocalPlaneXResolution))
    unit = tags.get(ExifTags.Base.FocalPlaneResolutionUnit, 2)
    unit_mm = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}.get(unit) if isinstance(unit, int) else None
    if focal_mm is None or pixels_per_unit is None or unit_mm is None:
        return None
    original_width = _positive(tags.get(ExifTags.Base.ExifImageWidth)) or width
    original_height = _positive(tags.get(ExifTags.Base.ExifImageHeight)) or height
    scale = max(width, height) / max(original_width, original_height)
    return _plausible_focal(focal_mm * pixels_per_unit / unit_mm * scale, width, height)


def _plausible_focal(focal_px: float, width: int, height: int) -> float | None:
    """`focal_px`, or None where it is no camera's: EXIF left by an editor is often in some other unit."""
    return focal_px if 0.1 < focal_px / max(width, height) < 100.0 else None


def _positive(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # EXIF holds anything; what is no number is caught below
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) and number > 0 else None


@contextmanager
def _decoding(where: str) -> Iterator[None]:
    """Turns what Pillow raises on a damaged file, which is nearly anything, into one clear line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DatasetError(
            f"{where}: expected a whole photo, found a damaged one ({reason}). Restore it from the original data."
        ) from error


def _open(file: io.BufferedIOBase, where: str) -> ImageFile.ImageFile:
    """The photo with its header read and its size checked, before any pixel is decoded.

    `Image.open` warns above 89 megapixels and refuses above 179, by a global limit that is not ours to move, so the
    plugins are asked directly.
    """
    Image.init()
    prefix = file.read(16)
    if not prefix:
        raise DatasetError(f"{where}: expected a photo, found a file of 0 bytes. Restore it from the original data.")
    factory = _factory(prefix, where)
    with _decoding(where):
        file.seek(0)
        image = factory(cast(IO[bytes], file), "")
    if image.width * image.height > MAX_PIXELS:
        raise TooManyPixelsError(
            f"{where}: expected at most {MAX_PIXELS // 10**6} megapixels, found {image.width} x {image.height}. "
            "Scale it down, or leave it out if it is not yours."
        )
    if min(image.size) < MIN_SIDE_PX:
        raise DatasetError(
            f"{where}: expected at least {MIN_SIDE_PX} pixels a side, found {image.width} x {image.height}. "
            "Use a larger one: this shows nothing."
        )
    return image


def is_heif(data: bytes) -> bool:
    """Whether a file begins as HEIC photos do."""
    return data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS


def _factory(prefix: bytes, where: str) -> Callable[[IO[bytes], str], ImageFile.ImageFile]:
    """What opens a photo that begins so."""
    if is_heif(prefix):
        if installed_version("pillow-heif") is None:
            raise MissingExtraError("pillow-heif", "heic", f"{where}: a photo in HEIC")
        from pillow_heif import HeifImageFile

        return HeifImageFile
    for name in FORMATS:
        factory, accepts = Image.OPEN[name]
        if accepts is None or accepts(prefix) is True:
            return factory
    raise DatasetError(
        f"{where}: expected a photo as {', '.join(FORMATS)}, found none of these. Convert it, for example to JPEG."
    )


def _exif(image: ImageFile.ImageFile) -> Image.Exif:
    """The photo's EXIF tags; none where they are damaged, as they are no part of the picture."""
    # Asking a PNG decodes all of it in search of an eXIf chunk behind the pixels; only one before them counts.
    if image.format == "PNG" and "exif" not in image.info:
        return Image.Exif()
    try:
        exif = image.getexif()
        exif.get_ifd(ExifTags.IFD.Exif)
    except Exception:  # Pillow raises nearly anything here
        return Image.Exif()
    return exif


def _header(image: ImageFile.ImageFile) -> ImageHeader:
    width, height = image.size
    if isinstance(image, TiffImageFile):
        # The size that Pillow gives for a TIFF is that of the upright photo, or not, depending on its version.
        width, height = image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    exif = _exif(image)
    orientation = exif.get(ExifTags.Base.Orientation, 1)
    if not isinstance(orientation, int) or not 1 <= orientation <= 8:
        orientation = 1
    return ImageHeader(width, height, orientation, exif_focal_px(exif, width, height))


def _upright(pixels: UInt8[np.ndarray, "H W 3"], orientation: int) -> UInt8[np.ndarray, "H2 W2 3"]:
    """The pixels with the EXIF orientation applied."""
    if orientation in (2, 4, 5, 7):
        pixels = pixels[:, ::-1]  # each mirroring orientation is a left-right flip of a turning one
        orientation = {2: 1, 4: 3, 5: 8, 7: 6}[orientation]
    return np.ascontiguousarray(np.rot90(pixels, _QUARTER_TURNS[orientation]))


def _stored_uint16(image: Image.Image, where: str) -> UInt16[np.ndarray, "H W"]:
    with _decoding(where):
        image.load()
    stored = np.asarray(image)
    if stored.min() < 0 or stored.max() > 65535:
        raise DatasetError(
            f"{where}: expected 16-bit grey values, found {stored.min()} to {stored.max()}. Save it with 16 bits."
        )
    return stored.astype(np.uint16)
