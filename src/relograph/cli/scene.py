"""`relograph scene`: what a folder of posed photos holds, and what is wrong with it."""

from itertools import islice
from typing import TYPE_CHECKING

import typer

from relograph.cli.options import FocalOption, FormatOption, SceneArgument, SkipBadFramesOption
from relograph.cli.printing import counted, printable

if TYPE_CHECKING:
    from relograph.geometry import Camera
    from relograph.scenes.inspection import SceneInfo

app = typer.Typer(help="Look at a folder of posed photos.", no_args_is_help=True)

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
    for line in _describe(scene_info(scene)):
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


def _describe(info: "SceneInfo") -> list[str]:
    splits = f": {info.num_train:,} train, {info.num_test:,} test" if info.num_train or info.num_test else ""
    lines = [
        f"{info.name} ({info.format}) in {info.root}",
        f"  frames     {info.num_frames:,}{splits}; {info.num_frames_with_depth:,} with depth",
        f"  photos     {', '.join(f'{width}x{height}' for width, height in info.image_sizes_wh)}",
        f"  extent     {_extent(info)}; {info.path_length_m:.2f} m walked",
    ]
    for camera, num_frames in islice(info.num_frames_by_camera.items(), _CAMERAS_SHOWN):
        lines.append(f"  camera     {_camera(camera)}; {counted(num_frames, 'frame')}")
    if (num_more := len(info.num_frames_by_camera) - _CAMERAS_SHOWN) > 0:
        lines.append(f"  camera     and {num_more} more")
    for sequence in info.sequences:
        split = f", {sequence.split}" if sequence.split else ""
        name = sequence.name if sequence.name is not None else "(none)"
        lines.append(
            f"  sequence   {name}: {counted(sequence.num_frames, 'frame')}{split}, {sequence.path_length_m:.2f} m"
        )
    return [*lines, *(f"  warning    {warning}" for warning in info.warnings)]


def _extent(info: "SceneInfo") -> str:
    axes = zip("xyz", info.extent_min_m, info.extent_max_m, strict=True)
    return ", ".join(f"{axis} {low:.2f} to {high:.2f} m" for axis, low, high in axes)


def _camera(camera: "Camera") -> str:
    numbers = f"fx {camera.fx:.2f} fy {camera.fy:.2f} cx {camera.cx:.2f} cy {camera.cy:.2f} px"
    distortion = f", distortion {' '.join(f'{value:g}' for value in camera.distortion)}" if camera.distortion else ""
    return f"{camera.model} {camera.width}x{camera.height}, {numbers}{distortion}"
