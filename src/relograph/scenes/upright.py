"""From the photo as it is stored to the photo as it is seen."""

from relograph.errors import DatasetError
from relograph.geometry import Camera, Pose
from relograph.scenes.images import ImageHeader, turn_upright


def describe_upright(
    T_world_stored: Pose, camera: Camera | None, header: ImageHeader, where: str
) -> tuple[Pose, Camera | None, int]:
    """`turn_upright` for tools that look at no EXIF orientation, with a check that camera and photo have one size.

    Intrinsics of photos of another size are not scaled: a crop and a smaller copy cannot be told apart by their sizes.
    """
    T_world_cam, upright, quarter_turns = turn_upright(T_world_stored, camera, header, where)
    if camera is not None and upright is not None and (upright.width, upright.height) != header.upright_size_wh:
        raise DatasetError(
            f"{where}: expected a photo of {camera.width} x {camera.height} pixels, as its camera says, found "
            f"{header.stored_width} x {header.stored_height}. Use the photos that the poses were computed with."
        )
    return T_world_cam, upright, quarter_turns
