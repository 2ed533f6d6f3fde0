"""Where on Earth a map lies, from GPS in its photos or from known points."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from PIL import ExifTags, Image

from relograph.errors import DatasetError
from relograph.geometry import Pose
from relograph.geometry.alignment import align_points, align_points_robustly
from relograph.maps.map import Map
from relograph.maps.records import Georeference, frame_poses
from relograph.maps.similarity import Similarity
from relograph.scenes.names import parse_floats, read_text
from relograph.scenes.scene import Scene

EARTH_RADIUS_M, FLATTENING = 6378137.0, 1 / 298.257223563
"""Of the ellipsoid WGS 84, which GPS uses."""
GPS_ERROR_M = 10.0
"""How far off GPS in a photo may be."""


@dataclass(frozen=True)
class GeoPoints:
    """Points in a map's world whose places on Earth are known."""

    world: Float64[np.ndarray, "N 3"]
    latitude_longitude_altitude: Float64[np.ndarray, "N 3"]
    """Degrees, degrees, metres."""


def read_points(path: Path) -> GeoPoints:
    """Points in a text file: x y z latitude longitude altitude a line; lines that start with # are comments."""
    lines = [(i, line) for i, line in enumerate(read_text(path).splitlines(), 1) if line.split("#")[0].strip()]
    values = [parse_floats(line.split("#")[0].replace(",", " "), 6, f"{path}:{i}") for i, line in lines]
    numbers = np.array(values, dtype=np.float64).reshape(-1, 6)
    return GeoPoints(numbers[:, :3], _checked(numbers[:, 3:], str(path)))


def points_of_photos(some: Map, scene: Scene) -> GeoPoints:
    """The map's cameras whose photos in `scene` tell where they were by GPS."""
    frames, places = [], []
    known = some.store.find([frame.name for frame in scene])
    for frame in scene:
        place = exif_place(frame.image.read_bytes()) if frame.name in known else None
        if place is not None:
            frames.append(known[frame.name])
            places.append(place)
    if not frames:
        raise DatasetError(
            f"{some.store.where}: expected photos of the map that tell GPS in EXIF, found none: of {len(scene):,} "
            f"photos in {scene.root} {len(known):,} are in the map by name. Give the photos as they came from the "
            "camera, or three known points."
        )
    return GeoPoints(frame_poses(frames).t.numpy(), np.array(places, dtype=np.float64).reshape(-1, 3))


def georeference(points: GeoPoints, *, max_residual_m: float | None = None) -> Georeference:
    """Where the world lies, by the similarity that lays its points on the Earth's.

    With `max_residual_m` points that are farther off are left out, as GPS between houses may be by far.
    """
    origin = points.latitude_longitude_altitude.mean(axis=0) if len(points.world) else np.zeros(3)
    enu = enu_of(points.latitude_longitude_altitude, origin)
    if max_residual_m is None:
        alignment = align_points(points.world, enu)
    else:
        found = align_points_robustly(points.world, enu, max_residual_m)
        if found is None:
            raise DatasetError(
                f"expected photos whose GPS agrees with the map to {max_residual_m:g} m, found too few among "
                f"{len(points.world)}. Give three known points instead."
            )
        alignment = found
    return Georeference(
        latitude_deg=float(origin[0]),
        longitude_deg=float(origin[1]),
        altitude_m=float(origin[2]),
        T_enu_world=Similarity.of(alignment),
        residual_m=tuple(alignment.residual.tolist()),
    )


def enu_of(places: Float64[np.ndarray, "N 3"], origin: Float64[np.ndarray, "3"]) -> Float64[np.ndarray, "N 3"]:
    """Metres east, north and up of `origin`, of places in degrees of latitude and longitude and metres of altitude.

    Example:
        >>> enu_of(np.array([[0.0, 0.001, 5.0]]), np.zeros(3)).round(2).tolist()
        [[111.32, 0.0, 5.0]]
    """
    enu: Float64[np.ndarray, "N 3"] = (_earth(places) - _earth(origin[None])) @ _enu_axes(origin).T
    return enu


def place_of_enu(enu: Float64[np.ndarray, "3"], origin: Float64[np.ndarray, "3"]) -> Float64[np.ndarray, "3"]:
    """Latitude and longitude in degrees and altitude in metres of a point east, north and up of `origin`: the way back.

    Example:
        >>> place_of_enu(np.array([111.32, 0.0, 5.0]), np.zeros(3)).round(3).tolist()
        [0.0, 0.001, 5.001]
    """
    x, y, z = _earth(origin[None])[0] + enu @ _enu_axes(origin)
    squared_eccentricity = FLATTENING * (2 - FLATTENING)
    across, altitude = np.hypot(x, y), 0.0
    latitude = np.arctan2(z, across * (1 - squared_eccentricity))
    # The latitude that a height leads to leads to a better height: eight times is beyond the last bit near the ground.
    for _ in range(8):
        radius = EARTH_RADIUS_M / np.sqrt(1 - squared_eccentricity * np.sin(latitude) ** 2)
        up = z + squared_eccentricity * radius * np.sin(latitude)
        latitude = np.arctan2(up, across)
        altitude = np.hypot(across, up) - radius
    return np.array([np.degrees(latitude), np.degrees(np.arctan2(y, x)), altitude])


def pose_on_earth(georeference: Georeference, T_world_cam: Pose) -> tuple[Float64[np.ndarray, "3"], Pose]:
    """Where a camera is, in degrees, degrees and metres, and how it is turned: `T_enu_cam` at its own place.

    East, north and up turn on the way from the map's origin to the camera, by a degree in 111 km.
    """
    origin = np.array([georeference.latitude_deg, georeference.longitude_deg, georeference.altitude_m])
    T_origin_cam = georeference.T_enu_world.move(T_world_cam)
    place = place_of_enu(T_origin_cam.t.numpy(), origin)
    R_enu_cam = _enu_axes(place) @ _enu_axes(origin).T @ T_origin_cam.R.numpy()
    return place, Pose.from_rotation_and_translation(R_enu_cam, np.zeros(3))


def _enu_axes(place: Float64[np.ndarray, "3"]) -> Float64[np.ndarray, "3 3"]:
    """`R_enu_earth` at a place: its rows are east, north and up along the Earth's axes."""
    latitude, longitude = np.radians(place[:2])
    sin_lat, cos_lat, sin_lon, cos_lon = np.sin(latitude), np.cos(latitude), np.sin(longitude), np.cos(longitude)
    return np.array(
        [
            [-sin_lon, cos_lon, 0.0],
            [-sin_lat * cos_lon, -sin_lat * sin_lon, cos_lat],
            [cos_lat * cos_lon, cos_lat * sin_lon, sin_lat],
        ]
    )


def _earth(places: Float64[np.ndarray, "N 3"]) -> Float64[np.ndarray, "N 3"]:
    """Metres from the Earth's middle, along axes that turn with it."""
    latitude, longitude, altitude = np.radians(places[:, 0]), np.radians(places[:, 1]), places[:, 2]
    squared_eccentricity = FLATTENING * (2 - FLATTENING)
    radius = EARTH_RADIUS_M / np.sqrt(1 - squared_eccentricity * np.sin(latitude) ** 2)
    across = (radius + altitude) * np.cos(latitude)
    up = (radius * (1 - squared_eccentricity) + altitude) * np.sin(latitude)
    return np.stack([across * np.cos(longitude), across * np.sin(longitude), up], axis=1)


def exif_place(photo: bytes) -> tuple[float, float, float] | None:
    """Latitude and longitude in degrees and altitude in metres by the photo's EXIF; None where it does not tell."""
    try:
        tags = Image.open(io.BytesIO(photo)).getexif().get_ifd(ExifTags.IFD.GPSInfo)
        latitude = _degrees(tags[ExifTags.GPS.GPSLatitude]) * (-1 if tags[ExifTags.GPS.GPSLatitudeRef] == "S" else 1)
        longitude = _degrees(tags[ExifTags.GPS.GPSLongitude]) * (-1 if tags[ExifTags.GPS.GPSLongitudeRef] == "W" else 1)
        below_sea = tags.get(ExifTags.GPS.GPSAltitudeRef, 0) in (1, b"\x01")
        altitude = float(tags.get(ExifTags.GPS.GPSAltitude, 0.0)) * (-1 if below_sea else 1)
        place = _checked(np.array([[latitude, longitude, altitude]]), "EXIF")[0]
    except Exception:  # EXIF holds anything, and Pillow raises anything about it
        return None
    return float(place[0]), float(place[1]), float(place[2])


def _degrees(values: Sequence[object]) -> float:
    degrees, minutes, seconds = (float(value) for value in values)  # type: ignore[arg-type]  # EXIF's own fractions
    return degrees + minutes / 60 + seconds / 3600


def _checked(places: Float64[np.ndarray, "N 3"], where: str) -> Float64[np.ndarray, "N 3"]:
    if not (np.isfinite(places).all() and (np.abs(places[:, 0]) <= 90).all() and (np.abs(places[:, 1]) <= 180).all()):
        raise DatasetError(f"{where}: expected latitudes within 90 and longitudes within 180 degrees, found others.")
    return places
