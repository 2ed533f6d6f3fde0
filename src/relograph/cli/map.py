"""`relograph map`: make a map of posed photos, and change, look at and check it."""

import re
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relograph.cli.convert import Format
from relograph.cli.options import DeviceOption, FocalOption, FormatOption, SkipBadFramesOption
from relograph.cli.printing import counted, printable
from relograph.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    from relograph.maps import Map
    from relograph.maps.inspection import MapInfo
    from relograph.maps.thinning_cost import Accuracy
    from relograph.models.shipped import LoadedMatchGNN
    from relograph.scenes import Scene

app = typer.Typer(help="Make a map of posed photos, in which others are localized.", no_args_is_help=True)

MapArgument = Annotated[str, typer.Argument(metavar="MAP", help="Folder of the map, or postgresql://HOST/DATABASE.")]
SceneArgument = Annotated[Path, typer.Argument(metavar="SCENE", help="Folder of posed photos, in any known format.")]
NewMapArgument = Annotated[
    str, typer.Argument(metavar="NEW", help="Folder of the new map, or postgresql://HOST/DATABASE.")
]
WeightsOption = Annotated[
    Path | None,
    typer.Option("--weights", metavar="DIR", help="Weights to compute features with.", show_default="the shipped ones"),
]
SequenceOption = Annotated[
    list[str] | None, typer.Option("--sequence", metavar="NAME", help="All photos of a sequence; may be repeated.")
]

_NAMED_FRAMES = 10  # that are affected by damage: a map may have lost a hundred thousand


class Precision(StrEnum):
    """How features are kept."""

    FLOAT16 = "float16"
    INT8 = "int8"


class Keep(StrEnum):
    """Which features a map keeps: all, those without the finest, or none."""

    ALL = "all"
    COARSE = "coarse"
    NONE = "none"


class Split(StrEnum):
    """Which frames of a scene."""

    ALL = "all"
    TRAIN = "train"
    TEST = "test"


SplitOption = Annotated[Split, typer.Option("--split", help="Frames of the scene to take.")]


@app.command("create")
def create_command(
    path: NewMapArgument,
    scene: SceneArgument,
    split: SplitOption = Split.ALL,
    precision: Annotated[Precision, typer.Option("--precision", help="int8 takes half the room.")] = Precision.FLOAT16,
    keep: Annotated[
        Keep,
        typer.Option(
            "--keep", help="Features to keep; the others are computed again when they are needed: all is the fastest."
        ),
    ] = Keep.COARSE,
    weights: WeightsOption = None,
    device: DeviceOption = "cpu",
    format: FormatOption = None,
    focal: FocalOption = None,
    skip_bad_frames: SkipBadFramesOption = False,
) -> None:
    """Make a map of posed photos, under torchrun by many processes. Stopped halfway, `map add` goes on."""
    from relograph.maps import Map
    from relograph.maps.building import processes_worthwhile
    from relograph.maps.ranks import torchrun_ranks
    from relograph.maps.records import LEVELS
    from relograph.progress import TerminalProgress

    with torchrun_ranks() as ranks:
        frames = _open_scene(scene, split, format, focal, skip_bad_frames, tell=ranks is None or ranks.is_first)
        levels = {Keep.ALL: LEVELS, Keep.COARSE: LEVELS[:2], Keep.NONE: ()}[keep]
        network = _network(weights, device)
        if ranks is not None and not ranks.is_first:
            ranks.help(frames.frames, network)
            return
        made = Map.create(path, network=network, precision=precision.value, levels=levels)
        added = made.add(
            frames,
            skip_bad_frames=skip_bad_frames,
            ranks=ranks,
            num_processes=processes_worthwhile(network.model, len(frames)),
            progress=TerminalProgress(),
        )
    _tell_left_out(added.left_out)
    typer.echo(printable(f"{made.store.where}: {counted(len(made), 'photo')}."))


@app.command("add")
def add_command(
    path: MapArgument,
    scene: SceneArgument,
    split: SplitOption = Split.ALL,
    weights: WeightsOption = None,
    device: DeviceOption = "cpu",
    format: FormatOption = None,
    focal: FocalOption = None,
    skip_bad_frames: SkipBadFramesOption = False,
) -> None:
    """Add posed photos to a map, in whose world their poses must be. Photos that it has already are passed over."""
    from relograph.maps import Map
    from relograph.maps.building import processes_worthwhile
    from relograph.maps.ranks import torchrun_ranks
    from relograph.progress import TerminalProgress

    with torchrun_ranks() as ranks:
        is_first = ranks is None or ranks.is_first
        some = Map.open(path) if is_first else None
        frames = _open_scene(scene, split, format, focal, skip_bad_frames, tell=is_first)
        network = _network(weights, device)
        if some is None:
            assert ranks is not None
            ranks.help(frames.frames, network)
            return
        added = some.add(
            frames,
            network=network,
            skip_bad_frames=skip_bad_frames,
            ranks=ranks,
            num_processes=processes_worthwhile(network.model, len(frames)),
            progress=TerminalProgress(),
        )
    _tell_left_out(added.left_out)
    there = f", {added.num_there:,} were there" if added.num_there else ""
    told = f"{counted(added.num_added, 'photo')} added{there}; {len(some):,} in all"
    typer.echo(printable(f"{some.store.where}: {told}."))


@app.command("remove")
def remove_command(
    path: MapArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Photos to remove.")] = None,
    sequence: SequenceOption = None,
) -> None:
    """Take photos out of a map."""
    from relograph.maps import Map

    some = Map.open(path)
    chosen = _chosen(some, names or [], sequence or [])
    some.remove(chosen)
    typer.echo(printable(f"{some.store.where}: {counted(len(chosen), 'photo')} removed; {len(some):,} left."))


@app.command("info")
def info_command(
    path: MapArgument,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="PNG", help="Draw the cameras and what they see, from above.")
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="List the photos' names instead.")] = False,
) -> None:
    """Print what a map holds, how large it is and what was done to it."""
    from relograph.maps import Map
    from relograph.maps.coverage import draw_coverage
    from relograph.maps.inspection import map_info

    some = Map.open(path)
    for line in (frame.name for frame in some) if names else _describe(some.store.where, map_info(some)):
        typer.echo(printable(line))
    if picture is not None:
        draw_coverage(some, picture)


@app.command("verify")
def verify_command(path: MapArgument) -> None:
    """Read every byte of a map, name what is damaged and the photos affected, and exit with 1 if there is any."""
    from relograph.maps import Map
    from relograph.progress import TerminalProgress

    some = Map.open(path)
    report = some.verify(TerminalProgress())
    for damage in report.damages:
        named = ", ".join(damage.frames[:_NAMED_FRAMES])
        more = f" and {len(damage.frames) - _NAMED_FRAMES:,} more" if len(damage.frames) > _NAMED_FRAMES else ""
        affected = f"; affected: {named}{more}" if damage.frames else ""
        typer.echo(printable(f"{damage.file}: {damage.what}{affected}"))
    for file in report.garbage:
        typer.echo(printable(f"{file}: no photo leads to it; the next change removes it"))
    if not report.is_whole:
        raise DatasetError(
            f"{some.store.where}: expected a whole map, found {counted(len(report.damages), 'damaged place')}, by "
            f"which {counted(len(report.affected_frames), 'photo')} of {report.num_frames:,} may be affected. Restore "
            "the files from a copy, or remove the photos and add them again."
        )
    typer.echo(printable(f"{some.store.where}: {counted(report.num_frames, 'photo')}, nothing wrong."))


@app.command("merge")
def merge_command(
    path: MapArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Map whose photos are taken in; it stays.")],
    transform: Annotated[
        Path | None,
        typer.Option(
            "--transform",
            metavar="FILE",
            help="4x4 matrix in a text file that takes OTHER's world to MAP's; may have a scale.",
            show_default="found by localizing photos of OTHER in MAP",
        ),
    ] = None,
    scale: Annotated[
        bool, typer.Option("--scale", help="Find the scale too, where OTHER's metres are not MAP's.")
    ] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Put before the names of OTHER's photos.")] = "",
    weights: WeightsOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Take the photos of another map into a map."""
    import numpy as np

    from relograph.maps import Map, Similarity
    from relograph.maps.joining import join_maps
    from relograph.maps.lengths import in_centimetres
    from relograph.progress import TerminalProgress
    from relograph.scenes.names import parse_floats, read_text

    here, there = Map.open(path), Map.open(other)
    if transform is not None:
        numbers = parse_floats(read_text(transform), 16, str(transform))
        T_here_there = Similarity.from_matrix(np.array(numbers).reshape(4, 4), where=str(transform))
    else:
        here.merged_names(there, prefix)  # localizing takes minutes: what cannot be merged is told before
        joint = join_maps(here, there, _network(weights, device), with_scale=scale, progress=TerminalProgress())
        T_here_there = Similarity.of(joint)
        residual = float(np.median(joint.residual[joint.inlier]))
        typer.echo(
            f"{joint.inlier.sum()} of {len(joint.inlier)} localized photos agree, to "
            f"{in_centimetres(residual, scale_is_known=here.settings.scale_is_known)} in the median; "
            f"scale {T_here_there.scale:.4f}."
        )
    here.merge(there, T_here_there, prefix=prefix, progress=TerminalProgress())
    typer.echo(printable(f"{here.store.where}: {counted(len(there), 'photo')} taken in; {len(here):,} in all."))


@app.command("split")
def split_command(
    path: MapArgument,
    new: NewMapArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Photos of the new map.")] = None,
    sequence: SequenceOption = None,
    move: Annotated[bool, typer.Option("--move", help="Take the photos out of MAP.")] = False,
) -> None:
    """Make a new map of some photos of a map."""
    from relograph.maps import Map
    from relograph.progress import TerminalProgress

    some = Map.open(path)
    chosen = _chosen(some, names or [], sequence or [])
    part = some.split(new, chosen, progress=TerminalProgress())
    if move:
        some.remove(chosen)
    typer.echo(printable(f"{part.store.where}: {counted(len(part), 'photo')}; {some.store.where}: {len(some):,}."))


@app.command("copy")
def copy_command(path: MapArgument, new: NewMapArgument) -> None:
    """Copy a map with its history, also from a folder to PostgreSQL and back, while others may be changing it."""
    from relograph.maps import Map
    from relograph.progress import TerminalProgress

    made = Map.open(path).copy(new, progress=TerminalProgress())
    typer.echo(printable(f"{made.store.where}: {counted(len(made), 'photo')}."))


@app.command("compact")
def compact_command(
    path: MapArgument,
    photos: Annotated[
        int | None,
        typer.Option("--photos", metavar="N", min=1, help="Keep this many, which stand apart.", show_default="all"),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="Keep as many as a map of this size can hold, such as 50MB."),
    ] = None,
    num_tried: Annotated[
        int,
        typer.Option(
            "--try", metavar="N", min=0, help="Localize this many of the photos that go, before and after; 0 for none."
        ),
    ] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and change nothing.")] = False,
    weights: WeightsOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Give back the room of removed photos; with --photos or --size, remove those that others stand next to."""
    import numpy as np

    from relograph.maps import Map
    from relograph.maps.lengths import in_metres
    from relograph.maps.thinning_cost import cost_of_thinning
    from relograph.progress import TerminalProgress

    if photos is not None and size is not None:
        raise ConfigError("expected --photos or --size, found both. Give one of them.")
    some = Map.open(path)
    if size is not None:
        photos = some.num_frames_within(_num_bytes(size))
    scale_is_known = some.settings.scale_is_known
    if photos is not None and photos < len(some) and num_tried:
        network = _network(weights, device)
        cost = cost_of_thinning(some, photos, network, num_tried=num_tried, progress=TerminalProgress())
        for when, found in (("before", cost.before), ("after", cost.after)):
            typer.echo(f"{when}: {_accuracy(found, scale_is_known)}")
    if dry_run:
        num_staying = len(some) if photos is None else photos
        typer.echo(printable(f"{some.store.where}: {counted(num_staying, 'photo')} would stay."))
        return
    before = sum(some.store.num_bytes().values())
    gone = some.compact(photos, progress=TerminalProgress())
    after = sum(some.store.num_bytes().values())
    told = f"{counted(len(some), 'photo')}; {_size(before)} before, {_size(after)} now"
    typer.echo(printable(f"{some.store.where}: {told}."))
    if len(gone.distance_m):
        usual, most = (
            in_metres(float(distance), scale_is_known=scale_is_known)
            for distance in (np.median(gone.distance_m), gone.distance_m.max())
        )
        typer.echo(
            f"A photo that went is {usual} and {np.median(gone.angle_deg):.1f} degrees from the nearest that is left "
            f"in the median, {most} at most."
        )


@app.command("export")
def export_command(
    path: MapArgument,
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New or empty folder to write to.")],
    to: Annotated[Format, typer.Option("--to", help="Format to write.")] = Format.COLMAP,
) -> None:
    """Write the small photos that a map keeps, with cameras and poses, as a scene for other programs."""
    from relograph.maps import Map
    from relograph.maps.exporting import export_map
    from relograph.progress import TerminalProgress

    scene = export_map(Map.open(path), destination, to.value, progress=TerminalProgress())
    for warning in scene.warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    typer.echo(printable(f"{destination}: {counted(len(scene), 'frame')}, written as {to.value}."))


@app.command("georeference")
def georeference_command(
    path: MapArgument,
    points: Annotated[
        Path | None,
        typer.Option("--points", metavar="FILE", help="Lines of x y z latitude longitude altitude, three at least."),
    ] = None,
    photos: Annotated[
        Path | None, typer.Option("--photos", metavar="SCENE", help="The map's photos, whose EXIF tells GPS.")
    ] = None,
) -> None:
    """Say where on Earth a map lies, by known points or by GPS in its photos; print how far off they are."""
    from relograph.maps import Map
    from relograph.maps.georeferencing import GPS_ERROR_M, georeference, points_of_photos, read_points
    from relograph.scenes.opening import open_scene

    some = Map.open(path)
    if (points is None) == (photos is None):
        raise ConfigError("expected --points or --photos, found both or none. Give one of them.")
    if points is not None:
        found = georeference(read_points(points))
    else:
        assert photos is not None
        found = georeference(points_of_photos(some, open_scene(photos)), max_residual_m=GPS_ERROR_M)
        num_agreeing = sum(residual <= GPS_ERROR_M for residual in found.residual_m)
        typer.echo(f"{num_agreeing} of {len(found.residual_m)} photos with GPS agree to {GPS_ERROR_M:g} m.")
    some.set_georeference(found)
    typer.echo(f"origin {found.latitude_deg:.7f} {found.longitude_deg:.7f} degrees, {found.altitude_m:.2f} m")
    typer.echo(f"scale {found.T_enu_world.scale:.6f}")
    typer.echo(f"residuals {', '.join(f'{residual:.3f}' for residual in found.residual_m)} m")


def _network(weights: Path | None, device: str) -> "LoadedMatchGNN":
    from relograph.maps.ranks import device_of_process
    from relograph.models.shipped import load_match_gnn

    network = load_match_gnn(weights)
    network.model.to(device_of_process(device))
    return network


def _open_scene(
    path: Path, split: Split, format: str | None, focal: float | None, skip_bad_frames: bool, *, tell: bool
) -> "Scene":
    from relograph.scenes.opening import open_scene

    scene = open_scene(path, format=format, focal_px=focal, skip_bad_frames=skip_bad_frames)
    for warning in scene.warnings if tell else ():
        typer.echo(printable(f"warning: {warning}"), err=True)
    chosen = {Split.ALL: scene, Split.TRAIN: scene.train, Split.TEST: scene.test}[split]
    if not len(chosen):
        raise DatasetError(f"{path}: expected frames of the {split.value} split, found none. Leave out --split.")
    return chosen


def _chosen(some: "Map", names: list[str], sequences: list[str]) -> list[str]:

    if not names and not sequences:
        raise ConfigError("expected photos, found neither names nor --sequence. Give one of them.")
    known = {frame.sequence for frame in some}
    for sequence in sequences:
        if sequence not in known:
            listed = ", ".join(sorted(name for name in known if name is not None)[:5]) or "none"
            raise DatasetError(f"expected a sequence of the map, found none named {sequence!r}. It has: {listed}.")
    return list(dict.fromkeys([*names, *(frame.name for frame in some if frame.sequence in sequences)]))


def _accuracy(found: "Accuracy", scale_is_known: bool) -> str:
    from relograph.maps.lengths import in_centimetres
    from relograph.maps.thinning_cost import RIGHT_DEG, RIGHT_M

    near = in_centimetres(RIGHT_M, scale_is_known=scale_is_known, digits=0)
    right = f"{found.num_right} of {found.num_queries} photos within {near} and {RIGHT_DEG:g} degrees"
    if not isfinite(found.median_error_m):
        return f"{right}, half of them or more not localized at all"
    error = in_centimetres(found.median_error_m, scale_is_known=scale_is_known)
    return f"{right}, {error} and {found.median_error_deg:.2f} degrees in the median"


def _tell_left_out(left_out: tuple[str, ...]) -> None:
    for reason in left_out:
        typer.echo(printable(f"warning: Left out: {reason}"), err=True)


def _describe(where: str, info: "MapInfo") -> list[str]:
    from relograph.maps.inspection import NEAR_DEG, NEAR_M
    from relograph.maps.lengths import in_centimetres, in_metres

    axes = zip("xyz", info.extent_min_m, info.extent_max_m, strict=True)
    scale_is_known = info.settings.scale_is_known
    extent = ", ".join(
        f"{axis} {low:.2f} to {in_metres(high, scale_is_known=scale_is_known)}" for axis, low, high in axes
    )
    parts = ", ".join(f"{part} {_size(size)}" for part, size in info.num_bytes.items())
    of_photo = ", ".join(f"{part} {_size(size)}" for part, size in info.num_bytes_of_photo.items())
    near = in_centimetres(NEAR_M, scale_is_known=scale_is_known, digits=0)
    per_photo = sum(info.num_bytes.values()) / max(info.num_frames, 1)
    lines = [
        where,
        f"  photos      {info.num_frames:,}; {counted(info.num_cameras, 'camera')}",
        f"  extent      {extent}",
        f"  redundancy  {info.redundancy:.0%} of the photos have another within {near} and {NEAR_DEG:g} degrees",
        f"  size        {parts}; {_size(per_photo)} a photo",
        *([f"  a photo     {of_photo}"] if of_photo else []),
        f"  features    {', '.join(info.settings.levels) or 'none'} in {info.settings.precision}, "
        f"by weights {info.settings.network_sha256[:12]}",
    ]
    if not scale_is_known:
        lines.append("  scale       not known: lengths are in a unit of the map's own, and so are those of answers")
    place = info.settings.georeference
    if place is not None:
        unit = "" if scale_is_known else f"; a unit is {place.T_enu_world.scale:.4g} m there"
        where_m = f"{place.latitude_deg:.7f} {place.longitude_deg:.7f} degrees, {place.altitude_m:.2f} m"
        lines.append(f"  on Earth    {where_m}{unit}")
    for sequence, num_frames in info.num_frames_by_sequence.items():
        lines.append(f"  sequence    {sequence or '(none)'}: {counted(num_frames, 'photo')}")
    for change in info.changes[-5:]:
        lines.append(
            f"  change {change.number:<4} {change.at_utc} {change.kind}: {counted(change.num_frames, 'photo')}"
        )
    return lines


def _num_bytes(size: str) -> int:
    """Of a size as users write it, such as 50MB or 1.5 GB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kMG]?)B\s*", size, flags=re.ASCII | re.IGNORECASE)
    if found is None:
        raise ConfigError(f"--size: expected a number with kB, MB or GB, such as 50MB, found {size!r}.")
    number, unit = found.groups()
    return int(float(number) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[unit.upper()])


def _size(num_bytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"
