"""From a photo of any size to the pixels that the network sees, and from its camera to theirs."""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera, Pose
from relograph.localization.focal import EXIF_LOG_SIGMA, UnknownFocal
from relograph.models.match_gnn import CONTEXT_STRIDE
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.image_cache import scaled_to_cover
from relograph.scenes.images import MIN_SIDE_PX, decode_image, read_header, rgb_pixels

LONGER_SIDE = 320
"""Of what the network sees, in pixels: the size that it is trained at."""
MOST_ELONGATED = 2.0
"""Photos that are longer than this many times their shorter side are seen larger, or little would be left of them."""
SHORTEST_SIDE = 2 * CONTEXT_STRIDE

AnyCamera = Camera | UnknownFocal | None
"""What is known of a camera: all, all but its focal length, or nothing."""
FIRST_GROUP_BY_EXIF, GROUPS_PER_FOCAL = 1000, 1000
"""Photos of a map whose EXIF tells the same focal length, to a thousandth of the longer side, have one lens."""


@runtime_checkable  # the tests check every argument's type while they run
class PosedPhoto(Protocol):
    """A photo of a map: a `Frame` of a scene, or a `PhotoInMemory`."""

    @property
    def name(self) -> str: ...
    @property
    def T_world_cam(self) -> Pose: ...
    @property
    def camera(self) -> AnyCamera: ...
    def read_image(self) -> UInt8[np.ndarray, "H W 3"]: ...


@dataclass(frozen=True)
class PhotoInMemory:
    """A posed photo whose pixels are at hand."""

    name: str
    pixels: UInt8[np.ndarray, "H W 3"]
    T_world_cam: Pose
    camera: AnyCamera = None

    def read_image(self) -> UInt8[np.ndarray, "H W 3"]:
        return self.pixels


@dataclass(frozen=True)
class PhotoFile:
    """A posed photo whose file is at hand, wherever that came from."""

    name: str
    data: bytes
    T_world_cam: Pose
    camera: AnyCamera = None
    sequence: str | None = None

    def read_image(self) -> UInt8[np.ndarray, "H W 3"]:
        return decode_image(self.data, self.name)


def expected_by_exif(camera: Camera) -> UnknownFocal:
    """What to expect of a photo of a map of whose camera EXIF alone tells, by the camera that it would make.

    Believed to the last digit, a focal length that is 4 % off would move every answer among such photos by centimetres.
    """
    likely = camera.fx / max(camera.width, camera.height)
    group = FIRST_GROUP_BY_EXIF + round(GROUPS_PER_FOCAL * likely)
    return UnknownFocal(camera.width, camera.height, group, likely, EXIF_LOG_SIGMA)


def camera_of(photo: PosedPhoto) -> AnyCamera:
    """What is known of the camera of a photo of a map."""
    if isinstance(photo, Frame) and photo.camera_by_exif and photo.camera is not None:
        return expected_by_exif(photo.camera)
    return photo.camera


@dataclass(frozen=True)
class WorkingSize:
    """How a photo is scaled and cut for the network.

    It is scaled evenly until its longer side has `LONGER_SIDE` pixels, then cut to multiples of 16 around its middle:
    4:3 and its upright form lose nothing, 16:9 and 3:2 a fortieth of the shorter side. A border of made-up pixels
    instead of the cut would be something that the network has never seen.

    Example:
        >>> WorkingSize.of(640, 480).size_hw, WorkingSize.of(1080, 1920).size_hw, WorkingSize.of(4000, 1000).size_hw
        ((240, 320), (320, 176), (160, 640))
    """

    photo_width: int
    photo_height: int
    size_hw: tuple[int, int]

    @staticmethod
    def of(photo_width: int, photo_height: int, longer_side: int = LONGER_SIDE) -> "WorkingSize":
        longer, shorter = max(photo_width, photo_height), min(photo_width, photo_height)
        scale = longer_side / longer * min(max(longer / shorter / MOST_ELONGATED, 1.0), 2.0)
        height, width = (
            max(SHORTEST_SIDE, CONTEXT_STRIDE * round(side * scale / CONTEXT_STRIDE))
            for side in (photo_height, photo_width)
        )
        return WorkingSize(photo_width, photo_height, (height, width))

    @property
    def scale(self) -> float:
        """Pixels that the network sees for each of the photo's."""
        height, width = self.size_hw
        return max(height / self.photo_height, width / self.photo_width)

    def pixels(self, photo: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "H W 3"]:
        """What the network sees."""
        return scaled_to_cover(photo, self.size_hw)

    def in_photo(self, xy: Float64[np.ndarray, "N 2"]) -> Float64[np.ndarray, "N 2"]:
        """Places in the photo, of places in what the network sees of it, both in pixels."""
        height, width = self.size_hw
        cut = np.array([self.photo_width - width / self.scale, self.photo_height - height / self.scale])
        return xy / self.scale + cut / 2

    def camera(self, camera: Camera | UnknownFocal) -> Camera | UnknownFocal:
        """The camera of what the network sees; the lens stays, the principal point moves with the cut."""
        height, width = self.size_hw
        self._check_shape(camera)
        if isinstance(camera, UnknownFocal):  # which looks through the middle, and so does the cut
            likely = camera.likely * self.scale * max(self.photo_width, self.photo_height) / max(width, height)
            return replace(camera, width=width, height=height, likely=likely)
        camera = camera.scaled_to(self.photo_width, self.photo_height)
        scale = self.scale
        left, top = self.photo_width - width / scale, self.photo_height - height / scale  # twice
        return replace(
            camera,
            width=width,
            height=height,
            fx=camera.fx * scale,
            fy=camera.fy * scale,
            cx=(camera.cx - left / 2) * scale,
            cy=(camera.cy - top / 2) * scale,
        )

    def _check_shape(self, camera: Camera | UnknownFocal) -> None:
        stretch = camera.width * self.photo_height / (camera.height * self.photo_width)
        if not 0.98 < stretch < 1.02:
            raise GeometryError(
                f"expected a camera for a photo of {self.photo_width} x {self.photo_height} pixels, found one for "
                f"{camera.width} x {camera.height}. Turn or cut it as the photo was, or leave it out."
            )


QueryImage = Path | str | bytes | UInt8[np.ndarray, "..."] | Image.Image
"""A photo's file, its bytes, or its pixels."""


@dataclass(frozen=True)
class SeenPhoto:
    """A photo as the network sees it."""

    size: WorkingSize
    pixels: UInt8[np.ndarray, "H W 3"]
    """In RGB, upright, scaled and cut to `size.size_hw`."""
    exif_focal: float | None = None
    """The focal length that its file tells, if any, in units of the photo's longer side."""


def see_pixels(pixels: UInt8[np.ndarray, "H W 3"]) -> SeenPhoto:
    """A photo whose pixels are at hand."""
    size = WorkingSize.of(pixels.shape[1], pixels.shape[0])
    return SeenPhoto(size, size.pixels(pixels))


def see_file(data: bytes, where: str) -> SeenPhoto:
    """A photo from the bytes of its file; of a large JPEG only as much is decoded as the network can see."""
    header = read_header(io.BytesIO(data), where)
    width, height = header.upright_size_wh
    size = WorkingSize.of(width, height)
    pixels = size.pixels(decode_image(data, where, covering_hw=size.size_hw))
    return SeenPhoto(size, pixels, None if header.focal_px is None else header.focal_px / max(width, height))


def read_query(image: QueryImage) -> SeenPhoto:
    """What the network sees of a photo, with what its file tells of the camera."""
    if isinstance(image, bytes):
        return see_file(image, "the photo")
    if isinstance(image, Path | str):
        source = FileSource(Path(image))
        return see_file(source.read_bytes(), source.label)
    pixels = rgb_pixels(image, "the photo") if isinstance(image, Image.Image) else np.asarray(image)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    if pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or pixels.dtype != np.uint8 or not pixels.size:
        raise DatasetError(
            f"expected a photo as 8-bit pixels [H, W, 3] in RGB, found {pixels.dtype} {list(pixels.shape)}. "
            "Convert it, or pass its file."
        )
    if min(pixels.shape[:2]) < MIN_SIDE_PX:
        raise DatasetError(
            f"expected a photo of at least {MIN_SIDE_PX} pixels a side, found {pixels.shape[1]} x {pixels.shape[0]}. "
            "Pass a larger one."
        )
    return see_pixels(np.ascontiguousarray(pixels[..., :3]))
