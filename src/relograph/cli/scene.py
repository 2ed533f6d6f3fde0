"""`relograph scene`: what a folder of posed photos holds, what is wrong with it, and how to make one."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relograph.cli.options import FocalOption, FormatOption, SceneArgument, SkipBadFramesOption
from relograph.cli.printing import counted, printable

if TYPE_CHECKING:
    from relograph.geometry import Camera
    from relograph.scenes.inspection import SceneInfo

app = typer.Typer(help="Look at a folder of posed photos, or make one of photos without poses.", no_args_is_help=True)

_CAMERAS_SHOWN = 3  # a scene whose every frame has its own focal length has as many cameras as frames


@app.command("info")
def info_command(
    path: SceneArgument,
    format: FormatOption = None,
    focal: FocalOption = None,
    skip_bad_frames: SkipBadFramesOption = False,
) -> None:
    """Print frames, extent in metres, intrinsics, sequences and warnings."""
    from relograph.scenes.inspection import scene_info
    from relograph.scenes.opening import open_scene

    scene = open_scene(path, format=format, focal_px=focal, skip_bad_frames=skip_bad_frames)
    for line in _describe(scene_info(scene), scene.scale_is_known):
        typer.echo(printable(line))


@app.command("check")
def check_command(path: SceneArgument, format: FormatOption = None, focal: FocalOption = None) -> None:
    """Read every pose, photo and depth map, name all that are bad, and exit with 1 if there are any."""
    from relograph.errors import DatasetError
    from relograph.progress import TerminalProgress
    from relograph.scenes.inspection import check_scene
    from relograph.scenes.opening import open_scene

    # A check names every bad frame, so the reader must not stop at the first one.
    scene = open_scene(path, format=format, focal_px=focal, skip_bad_frames=True)
    problems = [problem.message for problem in check_scene(scene, progress=TerminalProgress())]
    left_out = [warning for warning in scene.warnings if warning.startswith("Left out: ")]
    for line in (*scene.warnings, *problems):
        typer.echo(printable(line))
    if left_out or problems:
        raise DatasetError(
            f"{path}: expected every pose, photo and depth map to be good, "
            f"found {counted(len(left_out) + len(problems), 'problem')}. Mend what is listed above."
        )
    typer.echo(printable(f"{path}: {counted(len(scene), 'frame')}, nothing wrong."))


DistanceOption = Annotated[
    tuple[str, str, float] | None,
    typer.Option(metavar="FRAME_A FRAME_B METRES", help="How far two cameras stood apart.", show_default="unknown"),
]
ArLogOption = Annotated[
    Path | None,
    typer.Option("--ar-log", metavar="FILE", help="Log of a phone's AR session, TUM or JSON, to take metres from."),
]
ArOffsetOption = Annotated[
    float, typer.Option("--ar-offset", metavar="S", help="Seconds to add to a video's times to get the log's.")
]


@app.command("reconstruct")
def reconstruct_command(
    source: Annotated[Path, typer.Argument(metavar="PHOTOS|VIDEO", help="Folder of photos, or a video file.")],
    output: Annotated[Path, typer.Option("--output", metavar="SCENE", help="New or empty folder to write to.")],
    distance: DistanceOption = None,
    ar_log: ArLogOption = None,
    ar_offset: ArOffsetOption = 0.0,
    fps: Annotated[float, typer.Option(metavar="N", help="Frames of a video to use, a second.")] = 2.0,
    focal: FocalOption = None,
) -> None:
    """Find the poses of photos, or of a video's frames, with pycolmap, and write them as a COLMAP model."""
    from relograph.errors import DatasetError
    from relograph.progress import TerminalProgress
    from relograph.scenes.reconstruct import KnownDistance, reconstruct_scene
    from relograph.scenes.reconstruction_file import UNKNOWN_SCALE

    found = reconstruct_scene(
        source,
        output,
        distance=None if distance is None else KnownDistance(*distance),
        ar_log=ar_log,
        ar_offset_s=ar_offset,
        fps=fps,
        focal_px=focal,
        progress=TerminalProgress(),
    )
    for name in found.left_out:
        typer.echo(printable(f"warning: {name} could not be placed and was left out."), err=True)
    placed = f"{counted(found.num_placed, 'photo')} of {found.num_photos:,} placed"
    precision = f"{counted(found.num_points, 'point')}, {found.reprojection_error_px:.2f} px off"
    typer.echo(printable(f"{output}: {placed}; {precision}."))
    typer.echo(printable(f"scale: {found.scale_text}."))
    if found.scale == "unknown":
        typer.echo(f"warning: {UNKNOWN_SCALE}", err=True)
        if distance is not None or ar_log is not None:
            raise DatasetError(
                f"{output}: expected metres, found none, as is said above. The scene is kept and need not be "
                f"reconstructed again: run relograph scene scale {output} with another measure."
            )


@app.command("scale")
def scale_command(
    path: Annotated[Path, typer.Argument(metavar="SCENE", help="Scene that `relograph scene reconstruct` wrote.")],
    distance: DistanceOption = None,
    ar_log: ArLogOption = None,
    ar_offset: ArOffsetOption = 0.0,
) -> None:
    """Make metres of the lengths of a reconstructed scene, by a measured distance or the log of an AR session."""
    from relograph.scenes.reconstruct import KnownDistance, scale_scene

    measured = None if distance is None else KnownDistance(*distance)
    typer.echo(printable(f"scale: {scale_scene(path, distance=measured, ar_log=ar_log, ar_offset_s=ar_offset)}."))


def _describe(info: "SceneInfo", scale_is_known: bool) -> list[str]:
    from relograph.maps.lengths import in_metres

    def length(value: float) -> str:
        return in_metres(value, scale_is_known=scale_is_known)

    axes = zip("xyz", info.extent_min_m, info.extent_max_m, strict=True)
    extent = ", ".join(f"{axis} {low:.2f} to {length(high)}" for axis, low, high in axes)
    splits = f": {info.num_train:,} train, {info.num_test:,} test" if info.num_train or info.num_test else ""
    lines = [
        f"{info.name} ({info.format}) in {info.root}",
        f"  frames     {info.num_frames:,}{splits}; {info.num_frames_with_depth:,} with depth",
        f"  photos     {', '.join(f'{width}x{height}' for width, height in info.image_sizes_wh)}",
        f"  extent     {extent}; {length(info.path_length_m)} walked",
    ]
    for camera, num_frames in islice(info.num_frames_by_camera.items(), _CAMERAS_SHOWN):
        lines.append(f"  camera     {_camera(camera)}; {counted(num_frames, 'frame')}")
    if (num_more := len(info.num_frames_by_camera) - _CAMERAS_SHOWN) > 0:
        lines.append(f"  camera     and {num_more} more")
    for sequence in info.sequences:
        split = f", {sequence.split}" if sequence.split else ""
        name = sequence.name if sequence.name is not None else "(none)"
        lines.append(
            f"  sequence   {name}: {counted(sequence.num_frames, 'frame')}{split}, {length(sequence.path_length_m)}"
        )
    return [*lines, *(f"  warning    {warning}" for warning in info.warnings)]


def _camera(camera: "Camera") -> str:
    numbers = f"fx {camera.fx:.2f} fy {camera.fy:.2f} cx {camera.cx:.2f} cy {camera.cy:.2f} px"
    distortion = f", distortion {' '.join(f'{value:g}' for value in camera.distortion)}" if camera.distortion else ""
    return f"{camera.model} {camera.width}x{camera.height}, {numbers}{distortion}"
