"""Asks a relograph service from Python, with neither torch nor a map on this machine.

Answers are frozen dataclasses in the service's own words, with numpy arrays for poses. `relograph.serving` is the other
end; what goes over the wire is written down in docs/openapi.json.
"""

import io
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, urlsplit

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import ArrayLike
from PIL import Image

from relograph.errors import ConfigError, DatasetError, MissingExtraError, RelographError

KEY_VARIABLE = "RELOGRAPH_API_KEY"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Which no proxy of the environment is asked for."""
FRAMES_A_PAGE = 1000
CONNECT_S = 5.0
FIRST_WAIT_S = 0.2
"""Before a request is sent again after a lost connection; twice as long each time, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S = 5.0
ROTATION_TOLERANCE = 1e-3
"""How far a matrix may be from a rotation: one printed with few digits is within it."""
JPEG_QUALITY = 95
"""In which pixels are sent: little is lost, and 12 megapixels stay below the usual limit of a service."""

Axes = Literal["opencv", "opengl", "arkit", "unity", "ros"]
Solver = Literal["auto", "regress", "geometric"]
T = TypeVar("T")
Photo = Path | str | bytes | np.ndarray | Image.Image
"""A photo's file, its bytes, or its 8-bit pixels [H, W, 3] in RGB."""


# What a service says instead of what was asked for


class ClientError(RelographError):
    """The service did not do what it was asked for; the message is its own sentence."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; None where there was no answer."""
        self.code = code
        """For programs, for example `bad_image`."""
        self.request_id = request_id
        """By which the service's operator finds the request."""


class NotAllowedError(ClientError):
    """No key, one that is not valid any more, or one without the scope."""


class NotFoundError(ClientError):
    """No such map or photo, or none that the key may see."""


class BusyError(ClientError):
    """The service had too much to do, and still had after waiting."""


class UnavailableError(ClientError):
    """The service, or the map's database, cannot be reached."""


_ERROR_BY_STATUS: Mapping[int, type[ClientError]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    429: BusyError,
    502: UnavailableError,  # 502 and 504 are a proxy's words
    503: UnavailableError,
    504: UnavailableError,
}


# What a service says


@dataclass(frozen=True)
class MapSummary:
    """A map that is served."""

    name: str
    num_frames: int
    revision: int
    """The number of its last change."""
    scale_is_known: bool
    """Whether its unit is a metre."""
    georeferenced: bool
    weights_sha256: str
    writable: bool
    """Whether this client's key may change it."""


@dataclass(frozen=True, eq=False)
class MapDetails(MapSummary):
    """A map with where its cameras are."""

    extent_world: Float64[np.ndarray, "2 3"] | None
    """The least and the largest coordinates of the camera centres; None for a map without photos."""


@dataclass(frozen=True, eq=False)
class RemoteFrame:
    """A photo of a map, along OpenCV's camera axes."""

    name: str
    T_world_cam: Float64[np.ndarray, "4 4"]
    width: int
    height: int
    focal_px: float | None
    """In pixels of the photo; None where it is not known."""
    sequence: str | None


@dataclass(frozen=True)
class PriorPose:
    """About where a photo was taken, along the request's axes. It brings references, and may be wrong."""

    cam_center_world: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float] | None = None
    """None where the direction is not known."""
    radius_m: float = 3.0
    """How far off the place may be."""


@dataclass(frozen=True)
class GeoPose:
    """A pose on Earth, as OGC GeoPose's Basic-Quaternion says it."""

    latitude_deg: float
    longitude_deg: float
    height_m: float
    quat_xyzw: tuple[float, float, float, float]
    """Takes the camera's axes to east, north and up at its place."""


@dataclass(frozen=True, eq=False)
class DrawnMatches:
    """Matches with a reference for drawing, in fractions of width and height within [0, 1]."""

    query_xy: Float64[np.ndarray, "M 2"]
    """In the photo that was sent, upright."""
    ref_xy: Float64[np.ndarray, "M 2"]
    """In the reference's thumbnail."""
    inlier: Bool[np.ndarray, "M"]
    """Whether they agree with the pose."""


@dataclass(frozen=True, eq=False)
class RemoteReference:
    """A photo of the map that the query was compared with."""

    name: str
    similarity: float
    """Of its descriptor and the query's, a cosine."""
    overlap: float
    """Share of the query that it sees, as the network guesses."""
    num_matches: int
    num_inliers: int
    T_world_cam: Float64[np.ndarray, "4 4"]
    """Along the request's axes."""
    matches: DrawnMatches | None
    """Only where they were asked for."""


@dataclass(frozen=True, eq=False)
class RemoteAnswer:
    """Where a photo was taken, or why that cannot be said."""

    localized: bool
    reason: str
    """Why the photo was not localized, or what is not known of its pose; empty where all is well."""
    confidence: float
    """The chance that the pose is within 25 cm and 10 degrees of the truth; a guess where the scale is not known."""
    T_world_cam: Float64[np.ndarray, "4 4"] | None
    """Camera to world, in metres where `scale_is_known`; None where the photo was not localized, as the next four."""
    quat_wxyz: Float64[np.ndarray, "4"] | None
    cam_center_world: Float64[np.ndarray, "3"] | None
    position_sigma_m: float | None
    rotation_sigma_deg: float | None
    orientation_wxyz: Float64[np.ndarray, "4"] | None
    """Where the camera looks: as in the pose, or without one, where that is sure and the place is not."""
    covariance: Float64[np.ndarray, "6 6"] | None
    """Of the rotation vector in the camera's frame (radians), then of the centre in the world (metres)."""
    scale_is_known: bool
    """Whether the map's unit is a metre."""
    scale_observable: bool
    """Whether matches alone tell how far the query is from the references."""
    num_inliers: int
    focal_px: float | None
    """Given or found, in pixels of the photo."""
    width: int
    """Of the photo that was sent, upright, in pixels."""
    height: int
    axes: str
    """Camera axes that poses are said along."""
    geopose: GeoPose | None
    """Where the map is georeferenced."""
    references: tuple[RemoteReference, ...]
    latency_ms: Mapping[str, float]
    """In the service, by stage: decode, encode, retrieve, match, solve, queue, total."""
    map_name: str
    map_revision: int
    """The number of the last change that it had seen."""

    def as_prior(self, radius_m: float = 3.0) -> PriorPose | None:
        """The pose as a prior for the next photo, along the same axes; None where there is none."""
        if self.cam_center_world is None or self.quat_wxyz is None:
            return None
        return PriorPose(tuple(self.cam_center_world.tolist()), tuple(self.quat_wxyz.tolist()), radius_m)


@dataclass(frozen=True)
class Readiness:
    """Whether every map of a service can be asked."""

    is_ready: bool
    not_ready: tuple[str, ...]
    """Maps that cannot be read just now, as far as the key may see them."""


@runtime_checkable  # the tests check every argument's type while they run
class HasMatrix(Protocol):
    """A pose that can be written as a 4x4 matrix, as `relograph.Pose` can."""

    def matrix(self) -> Any: ...


def as_prior(given: object) -> PriorPose | None:
    """The prior that somebody means: a pose, bare or as a 4x4 matrix, may be 3 m off. What cannot be one is an error.

    Example:
        >>> as_prior([[1, 0, 0, 4], [0, 1, 0, 5], [0, 0, 1, 6], [0, 0, 0, 1]]).cam_center_world
        (4.0, 5.0, 6.0)
    """
    if given is None or isinstance(given, PriorPose):
        return given
    try:
        matrix = np.asarray(given.matrix() if isinstance(given, HasMatrix) else given, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    R = matrix[:3, :3] if matrix.shape == (4, 4) and np.isfinite(matrix).all() else np.zeros((3, 3))
    if np.abs(R @ R.T - np.eye(3)).max() > ROTATION_TOLERANCE or np.linalg.det(R) < 0:
        found = f"numbers of the shape {matrix.shape}" if matrix.size else type(given).__name__
        raise ConfigError(
            f"expected a PriorPose, a pose or its 4x4 matrix as prior, got {found}. Of a place alone: PriorPose((x, y, "
            "z)); of an answer: answer.as_prior()."
        )
    return PriorPose(tuple(matrix[:3, 3].tolist()), _quat_wxyz(R))


def _quat_wxyz(R: Float64[np.ndarray, "3 3"]) -> tuple[float, float, float, float]:
    """Of what is nearly a rotation: the eigenvector of the largest eigenvalue (Bar-Itzhack, 2000)."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = R
    upper = np.array(
        [
            [xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [0.0, xx - yy - zz, yx + xy, xz + zx],
            [0.0, 0.0, yy - xx - zz, zy + yz],
            [0.0, 0.0, 0.0, zz - xx - yy],
        ]
    )
    w, x, y, z = np.linalg.eigh(upper, UPLO="U").eigenvectors[:, -1].tolist()
    return w, x, y, z


# The client


@dataclass(frozen=True)
class _Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes


class Client:
    """Asks the service at `url`; threads may share one client, and with it its connections.

    `api_key` is a key of the service, by default the one in the variable RELOGRAPH_API_KEY. `timeout_s` is how long an
    answer may take. What the service is too busy for (429) is asked again when it says, and so is what lost its
    connection or met a replica or a database that was away, unless it changes a map. After `retry_s` nothing is asked
    again; 0 asks once.

    Example:
        >>> client = Client("http://127.0.0.1:1", retry_s=0)
        >>> client.healthz()
        Traceback (most recent call last):
        ...
        relograph.client.UnavailableError: expected a relograph service at http://127.0.0.1:1, found none: Connection refused. Start it with `relograph serve`, or check the address.
    """  # noqa: E501  # the sentence as it is shown

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 30.0,
    ) -> None:
        # Not the standard library: httpx keeps connections that threads share, and has a time limit for each part of a
        # request, forms with files, and proxies. urllib has none of the first two, and http.client none at all.
        try:
            import httpx
        except ImportError:
            raise MissingExtraError("httpx", "client", "Asking a service") from None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"expected the address of a service such as http://127.0.0.1:8000, got {url!r}.")
        if timeout_s <= 0 or retry_s < 0:
            raise ConfigError(f"expected timeout_s above 0 and retry_s of at least 0, got {timeout_s} and {retry_s}.")
        api_key = os.environ.get(KEY_VARIABLE) if api_key is None else api_key
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("expected an API key of printable letters, got one with others. Copy it again.")
        self.url = url.rstrip("/")
        self._retry_s = retry_s
        self._lost = (httpx.TransportError,)
        headers = {"User-Agent": "relograph-client", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            trust_env=parts.hostname not in LOOPBACK_HOSTS,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"  # without the key, as it may end up in a log

    # Looking

    def healthz(self) -> bool:
        """Whether the service lives; it raises where nobody answers."""
        return self._read("GET", "/healthz", lambda said: bool(said["status"] == "ok"))

    def ready(self) -> Readiness:
        """Whether every map can be asked now."""
        return self._read("GET", "/readyz", _readiness, taken=(200, 503))

    def maps(self) -> list[MapSummary]:
        """The maps that can be asked now."""
        return self._read("GET", "/v1/maps", lambda said: [_summary(one) for one in said["maps"]])

    def map(self, name: str) -> MapDetails:
        """One map, with where its cameras are."""
        return self._read("GET", _map_path(name), _details)

    def frames(self, map: str) -> Iterator[RemoteFrame]:
        """The photos of a map in the order in which they came, fetched a page at a time."""
        offset, total = 0, 1
        while offset < total:
            path = f"{_map_path(map)}/frames?offset={offset}&limit={FRAMES_A_PAGE}"
            frames, total = self._read("GET", path, lambda page: (_frames(page["frames"]), int(page["total"])))
            if not frames:
                return  # photos were removed meanwhile
            yield from frames
            offset += len(frames)

    def thumbnail(self, map: str, frame: str) -> bytes:
        """The small photo that the map keeps, as a JPEG."""
        return self._ask("GET", f"{_map_path(map)}/thumbnails/{quote(frame)}").content

    # Localizing

    def localize(
        self,
        map: str,
        image: Photo,
        *,
        focal_px: float | None = None,
        camera: str | None = None,
        prior: PriorPose | HasMatrix | ArrayLike | None = None,
        num_references: int | None = None,
        solver: Solver | None = None,
        axes: Axes | None = None,
        with_matches: bool = False,
    ) -> RemoteAnswer:
        """Where a photo was taken.

        `camera` is a line in COLMAP's notation. Without it and without `focal_px`, the focal length is searched, about
        where the photo's EXIF says. `prior` is about where it was taken: a bare pose, or its 4x4 matrix, may be 3 m
        off. What is left out is as the service has it.
        """
        prior = as_prior(prior)
        fields = {
            "focal_px": focal_px,
            "camera": camera,
            "prior": None if prior is None else json.dumps(vars(prior)),
            "num_references": num_references,
            "solver": solver,
            "axes": axes,
            "with_matches": "true" if with_matches else None,
        }
        return self._read("POST", f"{_map_path(map)}/localize", _answer, fields=fields, image=photo_bytes(image))

    # Changing

    def add_frame(
        self,
        map: str,
        image: Photo,
        *,
        name: str,
        T_world_cam: ArrayLike | HasMatrix,
        focal_px: float | None = None,
        camera: str | None = None,
        sequence: str | None = None,
    ) -> RemoteFrame:
        """Take a posed photo into a map, as 4x4 `T_world_cam` of the upright photo; needs a key of the scope write."""
        matrix = T_world_cam.matrix() if isinstance(T_world_cam, HasMatrix) else T_world_cam
        fields = {
            "name": name,
            "T_world_cam": json.dumps(np.asarray(matrix, dtype=np.float64).tolist()),
            "focal_px": focal_px,
            "camera": camera,
            "sequence": sequence,
        }
        path, photo = f"{_map_path(map)}/frames", photo_bytes(image)
        return self._read("POST", path, _frame, fields=fields, image=photo, changes=True, taken=(200, 201))

    def remove_frame(self, map: str, frame: str) -> None:
        """Take a photo out of a map; needs a key of the scope write."""
        self._ask("DELETE", f"{_map_path(map)}/frames/{quote(frame)}", changes=True, taken=(204,))

    # Asking, and asking again

    def _read(self, method: str, path: str, meaning: Callable[[Any], T], **how: Any) -> T:
        """What the JSON of the reply means."""
        reply = self._ask(method, path, **how)
        try:
            return meaning(json.loads(reply.content))
        except (ValueError, KeyError, TypeError):
            raise self._stranger(reply) from None

    def _ask(
        self,
        method: str,
        path: str,
        *,
        fields: Mapping[str, object] | None = None,
        image: bytes | None = None,
        changes: bool = False,
        taken: tuple[int, ...] = (200,),
    ) -> _Reply:
        """The reply, if its status is one of those that are `taken`."""
        data = None if fields is None else {name: str(value) for name, value in fields.items() if value is not None}
        files = None if image is None else {"image": ("image", image)}
        end, next_s = time.monotonic() + self._retry_s, FIRST_WAIT_S
        while True:
            wait_s = next_s * random.uniform(0.5, 1.0)  # many clients of a service that is back come one by one
            try:
                got = self._http.request(method, self.url + path, data=data, files=files)
                reply = _Reply(
                    got.status_code, {name.lower(): value for name, value in got.headers.items()}, got.content
                )
            except self._lost as error:
                failure: ClientError = self._unreachable(error)
                may_try = not changes
            else:
                if reply.status in taken:
                    return reply
                failure = self._refusal(reply)
                # Of a request that was turned away nothing was done; of one that failed on its way, who knows.
                may_try = reply.status == 429 or (isinstance(failure, UnavailableError) and not changes)
                wait_s = max(wait_s, _retry_after_s(reply))
            if not may_try or time.monotonic() + wait_s > end:
                raise failure
            time.sleep(wait_s)
            next_s = min(2 * next_s, LONGEST_WAIT_S)

    def _unreachable(self, error: Exception) -> ClientError:
        found = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        return UnavailableError(
            f"expected a relograph service at {self.url}, found none: {found}. "
            "Start it with `relograph serve`, or check the address."
        )

    def _refusal(self, reply: _Reply) -> ClientError:
        try:
            said = json.loads(reply.content)["error"]
            message, code = str(said["message"]), str(said["code"])
        except (ValueError, KeyError, TypeError):
            return self._stranger(reply)
        kind = _ERROR_BY_STATUS.get(reply.status, ClientError)
        return kind(message, status=reply.status, code=code, request_id=reply.headers.get("x-request-id", ""))

    def _stranger(self, reply: _Reply) -> ClientError:
        """Somebody else's answer: another program's, or a proxy's."""
        kind = _ERROR_BY_STATUS.get(reply.status, ClientError)
        content = reply.headers.get("content-type", "nothing").partition(";")[0]
        return kind(
            f"expected an answer of a relograph service from {self.url}, found {reply.status} with {content}. "
            "Check the address.",
            status=reply.status,
        )


def photo_bytes(image: Photo) -> bytes:
    """A photo as it is sent: its file untouched, pixels as a JPEG."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Path | str):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise DatasetError(
                f"{image}: expected a photo, the system answered: {error.strerror}. Check the path."
            ) from None
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
            raise DatasetError(
                f"expected a photo as 8-bit pixels [H, W, 3] in RGB, found {image.dtype} {list(image.shape)}. "
                "Convert it, or pass its file."
            )
        image = Image.fromarray(image)
    if image.mode.startswith(("I", "F")):  # as 8 bits Pillow would make them white or black
        raise DatasetError(
            f"expected a photo of 8 bits a channel, found one of mode {image.mode}. Convert it, or pass its file."
        )
    encoded = io.BytesIO()
    image.convert("RGB").save(encoded, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return encoded.getvalue()


def _map_path(name: str) -> str:
    return f"/v1/maps/{quote(name, safe='')}"


def _retry_after_s(reply: _Reply) -> float:
    try:
        return max(0.0, float(reply.headers.get("retry-after", "0")))
    except ValueError:  # a date, which the service never says
        return 0.0


# From JSON


def _array(numbers: Any) -> Any:
    return None if numbers is None else np.array(numbers, dtype=np.float64)


def _summary(said: Mapping[str, Any]) -> MapSummary:
    return MapSummary(**{name: said[name] for name in MapSummary.__dataclass_fields__})


def _details(said: Mapping[str, Any]) -> MapDetails:
    extent = said["extent_world"]
    box = None if extent is None else np.array([extent["min"], extent["max"]], dtype=np.float64)
    return MapDetails(**vars(_summary(said)), extent_world=box)


def _readiness(said: Mapping[str, Any]) -> Readiness:
    return Readiness(said["status"] == "ready", tuple(said["not_ready"]))


def _frames(said: Sequence[Mapping[str, Any]]) -> list[RemoteFrame]:
    return [_frame(frame) for frame in said]


def _frame(said: Mapping[str, Any]) -> RemoteFrame:
    values = {name: said[name] for name in RemoteFrame.__dataclass_fields__}
    return RemoteFrame(**values | {"T_world_cam": _array(said["T_world_cam"])})


def _answer(said: Mapping[str, Any]) -> RemoteAnswer:
    alike = {name: said[name] for name in RemoteAnswer.__dataclass_fields__ if name in said}
    names = ("T_world_cam", "quat_wxyz", "cam_center_world", "orientation_wxyz", "covariance")
    arrays = {name: _array(said[name]) for name in names}
    return RemoteAnswer(
        **alike
        | arrays
        | {
            "geopose": None if said["geopose"] is None else _geopose(said["geopose"]),
            "references": tuple(_reference(reference) for reference in said["references"]),
            "map_name": said["map"]["name"],
            "map_revision": said["map"]["revision"],
        }
    )


def _reference(said: Mapping[str, Any]) -> RemoteReference:
    drawn = said["matches"]
    matches = None
    if drawn is not None:
        query_xy, ref_xy = (_array(drawn[name]).reshape(-1, 2) for name in ("query_xy", "ref_xy"))
        matches = DrawnMatches(query_xy, ref_xy, np.array(drawn["inlier"], dtype=bool))
    values = {name: said[name] for name in RemoteReference.__dataclass_fields__}
    return RemoteReference(**values | {"T_world_cam": _array(said["T_world_cam"]), "matches": matches})


def _geopose(said: Mapping[str, Any]) -> GeoPose:
    position, turned = said["position"], said["quaternion"]
    return GeoPose(position["lat"], position["lon"], position["h"], tuple(turned[axis] for axis in "xyzw"))
