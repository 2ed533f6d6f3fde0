"""`relograph localize`: where photos, or the frames of a video, were taken."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relograph.cli.options import DeviceOption
from relograph.cli.printing import printable
from relograph.errors import ConfigError

if TYPE_CHECKING:
    from relograph.localization.localizing import CameraTold, Tally
    from relograph.localization.map_view import MapView


class Axes(StrEnum):
    """Whose camera axes poses are said along."""

    OPENCV = "opencv"
    OPENGL = "opengl"
    ARKIT = "arkit"
    UNITY = "unity"
    ROS = "ros"


class OutputFormat(StrEnum):
    """What answers are written as."""

    JSONL = "jsonl"
    CSV = "csv"
    TUM = "tum"
    COLMAP = "colmap"


class SolverChoice(StrEnum):
    """Which pose is the answer."""

    AUTO = "auto"
    REGRESS = "regress"
    GEOMETRIC = "geometric"


def localize_command(
    queries: Annotated[list[Path], typer.Argument(metavar="QUERY", help="Photos, folders of photos, video files.")],
    map: Annotated[str | None, typer.Option("--map", metavar="MAP", help="Map to localize in.")] = None,
    scene: Annotated[
        Path | None,
        typer.Option("--scene", metavar="ROOT", help="Posed photos to localize in, without a map: for a few hundred."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights of MatchGNN that a training wrote.", show_default="the package's"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the answers: .jsonl, .csv, .tum, or images.txt for COLMAP."),
    ] = None,
    format: Annotated[
        OutputFormat | None, typer.Option("--format", help="What to write, whatever the file is called.")
    ] = None,
    axes: Annotated[Axes, typer.Option("--axes", help="Camera axes of the poses; docs/localize.md defines them.")] = (
        Axes.OPENCV
    ),
    body: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="4x4 matrix from the camera to a body, whose poses are written instead."),
    ] = None,
    focal: Annotated[
        float | None, typer.Option("--focal", metavar="PX", help="Focal length of the queries in pixels.")
    ] = None,
    camera: Annotated[
        str | None,
        typer.Option(metavar="FILE|map", help="Camera of the queries, in COLMAP's notation, or the map's one camera."),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="POSE", help="Where they were taken, about: 'x y z', 'x y z qw qx qy qz', or a 4x4 matrix."
        ),
    ] = None,
    prior_radius: Annotated[
        float,
        typer.Option("--prior-radius", metavar="M", help="How far from the prior photos are preferred, in metres."),
    ] = 3.0,
    fps: Annotated[
        float | None, typer.Option(metavar="N", help="Frames of a video to localize, a second.", show_default="all")
    ] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth/--no-smooth", help="Write smoothed poses of a video beside the raw ones.")
    ] = True,
    explain: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page that shows why, for one query.")
    ] = None,
    references: Annotated[int, typer.Option("--references", metavar="N", help="Photos to compare a query with.")] = 7,
    solver: Annotated[
        SolverChoice, typer.Option("--solver", help="Pose by matches where they agree, the network's, or matches only.")
    ] = SolverChoice.AUTO,
    exported: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Encode and match by ONNX Runtime, with what relograph export wrote."),
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Say where photos, or the frames of a video, were taken; what is not sure enough is refused."""
    from relograph.localization.answer_files import PoseWording, format_of, is_tall, read_body_file, smoothed_path
    from relograph.localization.localizer import Localizer
    from relograph.localization.localizing import localize_queries, write_answers
    from relograph.localization.prior import parse_prior
    from relograph.localization.queries import open_queries
    from relograph.maps.asking import open_map_to_ask
    from relograph.models.shipped import load_match_gnn
    from relograph.progress import TerminalProgress
    from relograph.viewer.explain import explain_query, write_explanation

    # What is wrong with the options is to be known before minutes of work.
    opened = open_queries(queries, fps)
    answer_format = format_of(output, None if format is None else format.value)
    T_body_cam = None if body is None else read_body_file(body)
    PoseWording(axes.value, T_body_cam)
    told_prior = None if prior is None else parse_prior(prior, axes.value, prior_radius)
    if explain is not None and len(opened) != 1:
        raise ConfigError(f"expected one photo to explain, got {len(opened)} queries. Give one photo alone.")
    progress = TerminalProgress()
    asked = open_map_to_ask(map, scene, queries, load_match_gnn(weights), device, progress=progress)
    told = _camera_told(focal, camera, asked.features)
    for warning in asked.warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    localizer = Localizer(
        asked.features,
        asked.network,
        num_references=references,
        solver=solver.value,
        runtime="torch" if exported is None else "onnx",
        exported=exported,
    )
    if explain is None:
        answers = localize_queries(localizer, opened, told, told_prior)
    else:
        query = next(iter(opened))
        near = None if told_prior is None else told_prior.of(is_tall=is_tall(query.size_wh))
        explained = explain_query(localizer, query, told, near)
        write_explanation(
            explain,
            explained,
            asked.features.T_world_cam,
            asked.photo_of,
            scale_is_known=asked.scale_is_known,
            notes=asked.warnings,
        )
        typer.echo(printable(f"why: {explain}"), err=True)
        answers = iter([explained.named])
    raw, smoothed = write_answers(
        answers,
        output,
        answer_format,
        PoseWording(axes.value, T_body_cam, asked.scale_is_known),
        smooth=smooth,
        num_queries=len(opened),
        progress=progress,
    )
    _tell("localized", raw)
    if smoothed is not None and output is not None:
        _tell(f"smoothed ({smoothed_path(output)})", smoothed)


def _camera_told(focal_px: float | None, camera: str | None, view: "MapView") -> "CameraTold":
    from relograph.localization.localizing import CameraTold, camera_of_map
    from relograph.scenes.camera_models import parse_camera_file
    from relograph.scenes.names import read_text

    if camera is None:
        return CameraTold(focal_px)
    if camera == "map":
        return CameraTold(focal_px, camera_of_map(view))
    return CameraTold(focal_px, parse_camera_file(read_text(Path(camera)), camera))


def _tell(what: str, tally: "Tally") -> None:
    """How many were localized, on stderr: stdout may hold the answers."""
    num_refused = tally.num_queries - tally.num_localized
    why = f"; {num_refused:,} refused, the first: {tally.first_refused}" if num_refused else ""
    typer.echo(printable(f"{what}: {tally.num_localized:,} of {tally.num_queries:,}{why}"), err=True)
