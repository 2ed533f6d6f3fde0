"""Photos or a video without poses become a scene: pycolmap finds points, matches them and places the cameras.

Photos alone tell a place up to its size. A known distance between two cameras, or the log of the AR session in which
they were taken, makes its lengths metres; without either, the scene says that its scale is not known.
"""

import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from PIL import Image

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.geometry import Pose
from relograph.geometry.alignment import align_points_robustly
from relograph.progress import SILENT, Progress
from relograph.scenes import colmap
from relograph.scenes.ar_log import ArLog, read_ar_log
from relograph.scenes.frame import FileSource, Frame
from relograph.scenes.loops import pairs_alike
from relograph.scenes.names import is_file
from relograph.scenes.photo_folder import HEIC_ENDINGS, list_photos
from relograph.scenes.reconstruction_file import ScaleSource, read_reconstruction_file, write_reconstruction_file
from relograph.scenes.video import check_fps, is_video, open_video
from relograph.scenes.writing import place_image, writing_folder

FPS = 2.0
"""Frames of a video that are used, a second."""
MAX_IMAGE_SIDE = 1600
"""Larger photos are scaled down to it for finding points: more takes long and adds little."""
ALL_PAIRS_UP_TO = 100
"""Photos of which each is matched with every other; of more, each with its neighbours by name and with some others that
look like it, so that a walk which comes back to where it was is closed."""
NEIGHBOURS, NUM_ALIKE = 10, 5
"""By name, to each side, and by their looks."""
MIN_PHOTOS = 3
MIN_TOLD = 4
"""Cameras that an AR log has to tell of: three positions fit nearly anything."""
MIN_SHARE = 0.2
"""Of a scale's cameras, whose distance is no measure if it is a smaller share of the median distance to the others."""
AR_TOLERANCE_M, AR_TOLERANCE_OF_EXTENT = 0.05, 0.02
"""How far a camera may be from where an AR log has it: such logs drift."""


@dataclass(frozen=True)
class KnownDistance:
    """How far two cameras stood apart."""

    name_a: str
    name_b: str
    metres: float


@dataclass(frozen=True)
class Reconstructed:
    """What became of the photos."""

    num_photos: int
    num_placed: int
    num_points: int
    reprojection_error_px: float
    scale: ScaleSource
    scale_text: str
    """How the scale was found, or why it was not, in a sentence."""
    left_out: tuple[str, ...]
    """Names of photos that could not be placed."""


def reconstruct_scene(
    source: Path,
    destination: Path,
    *,
    distance: KnownDistance | None = None,
    ar_log: Path | None = None,
    ar_offset_s: float = 0.0,
    fps: float = FPS,
    focal_px: float | None = None,
    progress: Progress = SILENT,
) -> Reconstructed:
    """Writes the scene of the photos in a folder, or of a video's frames, as a COLMAP model with its photos.

    Where the distance or the log turns out to be no measure the scene is kept all the same, with an unknown scale:
    `scale_scene` finds it another way without placing the cameras again.

    `ar_offset_s` is added to the times of the video to get those of the log. `focal_px` is in pixels of the photos;
    without it that of their EXIF is used, and without that it is found with the poses.
    """
    pycolmap = _import_pycolmap()
    check_fps(fps)
    if focal_px is not None and not (math.isfinite(focal_px) and focal_px > 0):
        raise ConfigError(f"expected a focal length in pixels above 0, got {focal_px}. Leave it out if unknown.")
    log = _checked_measure(distance, ar_log)
    with writing_folder(destination) as folder:
        photos = _place_photos(source, folder / "images", fps, progress)
        # Before minutes of work all that can be known to be wrong is told.
        if distance is not None:
            distance = _named_like(distance, photos.names)
        if log is not None:
            _positions_told(photos.names, [photos.time_by_name.get(name) for name in photos.names], log, ar_offset_s)
        model = _place_cameras(pycolmap, folder / "images", photos, focal_px, progress)
        names, centers = _cameras(model)
        try:
            scaled = _scaled(names, centers, photos.time_by_name, distance, log, ar_offset_s)
        except DatasetError as error:
            scaled = _Scaled(None, "unknown", f"unknown: {str(error).removesuffix('.')}")
        if scaled.matrix is not None:
            model.transform(pycolmap.Sim3d(scaled.matrix))
        (folder / "sparse" / "0").mkdir(parents=True)
        model.write_binary(folder / "sparse" / "0")
        found = Reconstructed(
            num_photos=len(photos.names),
            num_placed=len(names),
            num_points=model.num_points3D(),
            reprojection_error_px=float(model.compute_mean_reprojection_error()),
            scale=scaled.source,
            scale_text=scaled.text,
            left_out=tuple(name for name in photos.names if name not in names),
        )
        told = {
            "photos": found.num_photos,
            "placed": found.num_placed,
            "reprojection_error_px": found.reprojection_error_px,
            "scale_text": found.scale_text,
            "pycolmap": pycolmap.__version__,
            "time_s_by_name": photos.time_by_name,
        }
        write_reconstruction_file(folder, found.scale, told)
    return found


def scale_scene(
    root: Path, *, distance: KnownDistance | None = None, ar_log: Path | None = None, ar_offset_s: float = 0.0
) -> str:
    """Makes metres of the lengths of a scene that `reconstruct_scene` wrote, and says how they were found."""
    pycolmap = _import_pycolmap()
    if distance is None and ar_log is None:
        raise ConfigError("expected a known distance or an AR log, got neither. Pass --distance or --ar-log.")
    log = _checked_measure(distance, ar_log)
    model_folder = root / "sparse" / "0"
    if not model_folder.exists() and _before(model_folder).exists():  # a kill came between the two
        _before(model_folder).rename(model_folder)
    if not is_file(model_folder / "images.bin"):
        raise DatasetError(
            f"{root}: expected what `relograph scene reconstruct` wrote, found no sparse/0/images.bin. Check the path."
        )
    told = read_reconstruction_file(root)
    colmap.read(root)  # it says in a line what is damaged
    model = pycolmap.Reconstruction(model_folder)
    names, centers = _cameras(model)
    if distance is not None:
        distance = _named_like(distance, names)
    scaled = _scaled(names, centers, told.get("time_s_by_name", {}), distance, log, ar_offset_s)
    model.transform(pycolmap.Sim3d(scaled.matrix))
    _replace_model(model, model_folder)
    write_reconstruction_file(root, scaled.source, {**told, "scale_text": scaled.text})
    return scaled.text


def _replace_model(model: Any, folder: Path) -> None:
    """Writes a model in place of the one that is in its folder: the old one is there until the new one is whole."""
    old, new = _before(folder), folder.with_name(f"{folder.name}.after")
    for left_by_a_kill in (old, new):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    with writing_folder(new) as written:
        model.write_binary(written)
        if others := {file.name for file in folder.iterdir()} - {file.name for file in written.iterdir()}:
            raise DatasetError(
                f"{folder}: expected a model alone, found {min(others)!r} beside it, whose lengths would be of another "
                "unit. Move it elsewhere."
            )
    folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old)


def _before(model_folder: Path) -> Path:
    """Where the model is while another takes its place."""
    return model_folder.with_name(f"{model_folder.name}.before")


def _checked_measure(distance: KnownDistance | None, ar_log: Path | None) -> ArLog | None:
    """The log, where there is one; of it and a distance there may be one only."""
    if distance is not None and ar_log is not None:
        raise ConfigError("expected a known distance or an AR log, got both. Leave one of them out.")
    if distance is not None and not (math.isfinite(distance.metres) and distance.metres > 0):
        raise ConfigError(f"expected a distance in metres above 0, got {distance.metres}. Measure it again.")
    return None if ar_log is None else read_ar_log(ar_log)


# The photos


@dataclass(frozen=True)
class _Photos:
    names: list[str]
    time_by_name: dict[str, float]
    size_and_focal: set[tuple[int, int, float | None]]
    """Of the upright photos: width, height, focal length by EXIF in pixels."""


def _place_photos(source: Path, folder: Path, fps: float, progress: Progress) -> _Photos:
    """Puts upright photos into a folder: those of another one, or frames of a video."""
    photos = _Photos([], {}, set())
    if is_video(source) and not source.is_dir():
        folder.mkdir()
        video = open_video(source)
        with progress.task("reading the video", total=video.num_frames(fps)) as advance:
            for frame in video.frames(fps):
                name = f"frame-{frame.index:06d}.jpg"
                Image.fromarray(frame.pixels).save(folder / name, quality=95)
                photos.names.append(name)
                photos.time_by_name[name] = frame.timestamp_s
                photos.size_and_focal.add((frame.pixels.shape[1], frame.pixels.shape[0], None))
                advance(1)
    else:
        names = list_photos(source)
        taken = {name.lower() for name in names}
        with progress.task("copying photos", total=len(names)) as advance:
            for name in names:
                file = FileSource(source / name)
                photo, header = Frame(name, Pose.identity(), file), file.read_image_header()
                if name.lower().endswith(HEIC_ENDINGS):  # which pycolmap does not read
                    as_jpeg = str(PurePosixPath(name).with_suffix(".jpg"))
                    name = f"{name}.jpg" if as_jpeg.lower() in taken else as_jpeg
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(photo.read_image()).save(folder / name, quality=95)
                else:
                    place_image(photo, folder / name, "copy")
                photos.names.append(name)
                photos.size_and_focal.add((*header.upright_size_wh, header.focal_px))
                if re.fullmatch(r"[0-9]+\.[0-9]+", stem := PurePosixPath(name).stem):  # as in TUM RGB-D
                    photos.time_by_name[name] = float(stem)
                advance(1)
    if len(photos.names) < MIN_PHOTOS:
        raise DatasetError(
            f"{source}: expected {MIN_PHOTOS} photos or more, found {len(photos.names)}. Take more of the place, or "
            "more frames a second of the video (--fps)."
        )
    return photos


def _named_like(distance: KnownDistance, names: Sequence[str]) -> KnownDistance:
    """The distance between two photos by their full names."""
    name_a, name_b = _name_like(distance.name_a, names), _name_like(distance.name_b, names)
    if name_a == name_b:
        raise ConfigError(f"expected the distance between two photos, got {name_a} twice. Name another one.")
    return KnownDistance(name_a, name_b, distance.metres)


def _name_like(wanted: str, names: Sequence[str]) -> str:
    """The photo of that name, or the only one whose file is called so, with its ending or without."""
    asked = [wanted]
    if wanted.lower().endswith(HEIC_ENDINGS):  # as such a photo is called in the scene
        asked = [f"{wanted}.jpg", PurePosixPath(wanted).with_suffix(".jpg").as_posix()]
    for called in asked:
        if called in names:
            return called
        file = called.lower()
        alike = [name for name in names if file in (PurePosixPath(name.lower()).name, PurePosixPath(name.lower()).stem)]
        if alike:
            break
    if len(alike) != 1:
        found = f"several: {', '.join(alike[:3])}" if alike else f"none; there are {names[0]} to {names[-1]}"
        raise DatasetError(f"expected a photo called {wanted!r}, found {found}. Give its name in the scene.")
    return alike[0]


# The cameras


def _place_cameras(pycolmap: Any, images: Path, photos: _Photos, focal_px: float | None, progress: Progress) -> Any:
    """The largest model that pycolmap makes of the photos."""
    with TemporaryDirectory(prefix="relograph-") as temporary, _quiet(pycolmap):
        database = Path(temporary) / "database.db"
        cpu = pycolmap.Device.cpu
        reader = pycolmap.ImageReaderOptions()
        is_one_camera = len(photos.size_and_focal) == 1
        width, height, exif_focal_px = next(iter(photos.size_and_focal))
        if is_one_camera and (focal := focal_px or exif_focal_px):
            reader.camera_params = f"{focal},{width / 2},{height / 2},0"
        elif focal_px is not None:
            raise ConfigError(
                f"expected photos of one camera to give --focal for, found {len(photos.size_and_focal)} sizes or focal "
                "lengths. Leave it out, or reconstruct those of one camera."
            )
        extraction = pycolmap.FeatureExtractionOptions()
        extraction.max_image_size = MAX_IMAGE_SIDE
        with progress.task("reconstructing", total=len(photos.names) + 2) as advance:
            pycolmap.extract_features(
                database,
                images,
                image_names=photos.names,
                camera_mode=pycolmap.CameraMode.SINGLE if is_one_camera else pycolmap.CameraMode.AUTO,
                reader_options=reader,
                extraction_options=extraction,
                device=cpu,
            )
            advance(1)
            _match(pycolmap, database, photos.names)
            advance(1)
            options = pycolmap.IncrementalPipelineOptions()
            options.random_seed = 0
            options.min_model_size = MIN_PHOTOS
            num_left = len(photos.names)

            def place(num: int) -> None:  # one that begins again, as a pair led nowhere, places photos twice
                nonlocal num_left
                advance(min(num, num_left))
                num_left -= min(num, num_left)

            models = pycolmap.incremental_mapping(
                database,
                images,
                temporary,
                options,
                initial_image_pair_callback=lambda: place(2),
                next_image_callback=lambda: place(1),
            )
    if not models:
        raise DatasetError(
            f"expected photos that overlap, found {len(photos.names)} of which no two could be placed beside each "
            "other. Take them closer together, of things with texture, and walk while you turn."
        )
    return max(models.values(), key=lambda model: int(model.num_reg_images()))


def _match(pycolmap: Any, database: Path, names: Sequence[str]) -> None:
    """Matches photos in pairs: all of them, or where there are many those that may show the same."""
    cpu = pycolmap.Device.cpu
    if len(names) <= ALL_PAIRS_UP_TO:
        pycolmap.match_exhaustive(database, device=cpu)
        return
    numbers = [f"{number:08d}" for number in range(len(names))]
    with pycolmap.Database.open(database) as opened:
        # pycolmap takes neighbours in the alphabet's order, and no names with spaces in a list.
        _rename(opened, dict(zip(names, numbers, strict=True)))
        id_by_name = {image.name: image.image_id for image in opened.read_all_images()}
        descriptors = [np.asarray(opened.read_descriptors(id_by_name[number]).data) for number in numbers]
    sequential = pycolmap.SequentialPairingOptions(overlap=NEIGHBOURS)
    pycolmap.match_sequential(database, pairing_options=sequential, device=cpu)
    pairs = pairs_alike(descriptors, NUM_ALIKE, min_apart=NEIGHBOURS + 1)
    listed = database.with_name("pairs.txt")
    listed.write_text("".join(f"{numbers[a]} {numbers[b]}\n" for a, b in pairs), encoding="utf-8")
    pycolmap.match_image_pairs(
        database, pairing_options=pycolmap.ImportedPairingOptions(match_list_path=listed), device=cpu
    )
    with pycolmap.Database.open(database) as opened:
        _rename(opened, dict(zip(numbers, names, strict=True)))


def _rename(database: Any, new_by_old: dict[str, str]) -> None:
    for image in database.read_all_images():
        image.name = new_by_old[image.name]
        database.update_image(image)


@contextmanager
def _quiet(pycolmap: Any) -> Iterator[None]:
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


def _import_pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "geometry", "Reconstructing a scene") from None
    return pycolmap


# The scale


@dataclass(frozen=True)
class _Scaled:
    """The motion [scale R | t] that makes lengths metres; None where there is none."""

    matrix: Float64[np.ndarray, "3 4"] | None
    source: ScaleSource
    text: str


def _cameras(model: Any) -> tuple[list[str], Float64[np.ndarray, "N 3"]]:
    """Names and centres of the cameras that could be placed, by name."""
    center_by_name = {
        model.image(image).name: model.image(image).projection_center() for image in model.reg_image_ids()
    }
    return sorted(center_by_name), np.array([center_by_name[name] for name in sorted(center_by_name)])


def _scaled(
    names: Sequence[str],
    centers: Float64[np.ndarray, "N 3"],
    time_s_by_name: Mapping[str, float],
    distance: KnownDistance | None,
    log: ArLog | None,
    ar_offset_s: float,
) -> _Scaled:
    """The scale of the cameras that could be placed; an error where the distance or the log is no measure of it."""
    if distance is not None:
        return _scaled_by_distance(names, centers, distance)
    if log is not None:
        return _scaled_by_log(names, centers, [time_s_by_name.get(name) for name in names], log, ar_offset_s)
    return _Scaled(None, "unknown", "unknown: lengths are in a unit of their own, not in metres")


def _scaled_by_distance(names: Sequence[str], centers: Float64[np.ndarray, "N 3"], distance: KnownDistance) -> _Scaled:
    pair = (distance.name_a, distance.name_b)
    placed = [names.index(name) for name in pair if name in names]
    away = np.linalg.norm(centers - centers[placed[0] if placed else 0], axis=1)
    others = f"Name others, such as {names[placed[0] if placed else 0]} and {names[int(away.argmax())]}."
    if len(placed) < 2:
        missing = " and ".join(name for name in pair if name not in names)
        raise DatasetError(f"expected two photos that could be placed, found that {missing} could not. {others}")
    found, typical = float(away[placed[1]]), float(np.median(away))
    if not found > MIN_SHARE * typical:
        raise DatasetError(
            f"expected cameras far enough apart to measure by, found {pair[0]} and {pair[1]} at "
            f"{found / typical if typical else 0:.0%} of the typical distance. {others}"
        )
    scale = distance.metres / found
    return _Scaled(scale * np.eye(3, 4), "distance", f"{pair[0]} and {pair[1]} are {distance.metres:g} m apart")


def _scaled_by_log(
    names: Sequence[str],
    centers: Float64[np.ndarray, "N 3"],
    times_s: Sequence[float | None],
    log: ArLog,
    ar_offset_s: float,
) -> _Scaled:
    positions, is_told = _positions_told(names, times_s, log, ar_offset_s)
    num_told = int(is_told.sum())
    extent = float(np.linalg.norm(np.ptp(positions[is_told], axis=0)))
    tolerance = AR_TOLERANCE_M + AR_TOLERANCE_OF_EXTENT * extent
    aligned = align_points_robustly(centers[is_told], positions[is_told], tolerance)
    if aligned is None:
        raise DatasetError(
            f"{log.path}: expected positions that agree with the photos to {100 * tolerance:.0f} cm, found fewer than "
            f"half of {num_told} that do. Check that the log belongs to them, its unit, and --ar-offset."
        )
    median_cm = 100 * float(np.median(aligned.residual[aligned.inlier]))
    text = (
        f"{int(aligned.inlier.sum())} of {num_told} cameras agree with {log.path.name}, median {median_cm:.1f} cm off; "
        "the world is the log's"
    )
    matrix = np.concatenate([aligned.scale * aligned.T.R.numpy(), aligned.T.t.numpy()[:, None]], axis=1)
    return _Scaled(matrix, "ar_log", text)


def _positions_told(
    names: Sequence[str], times_s: Sequence[float | None], log: ArLog, ar_offset_s: float
) -> tuple[Float64[np.ndarray, "N 3"], Bool[np.ndarray, "N"]]:
    """Where a log has the cameras, and which of them it tells of: four at least."""
    positions, is_told = log.positions_of(names, times_s, ar_offset_s)
    if is_told.sum() < MIN_TOLD:
        known_s = [time_s + ar_offset_s for time_s in times_s if time_s is not None]
        ours = f"photos such as {names[0]}" + (f" at {min(known_s):.3f} to {max(known_s):.3f} s" if known_s else "")
        raise DatasetError(
            f"{log.path}: expected positions of {MIN_TOLD} cameras or more, found those of {int(is_told.sum())}: the "
            f"log has {log.span()}, the scene {ours}. Match the names, or shift times with --ar-offset."
        )
    return positions, is_told
