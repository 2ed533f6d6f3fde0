"""What goes over the wire: the contract between the service, its page and its clients, field by field.

Poses are `T_world_cam`, camera to world in metres (or in the map's own unit where `scale_is_known` is false), as four
rows of four numbers. Quaternions are (w, x, y, z) but for GeoPose, which has its own names.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Axes = Literal["opencv", "opengl", "arkit", "unity", "ros"]
Solver = Literal["auto", "regress", "geometric"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
Vector3 = tuple[Finite, Finite, Finite]
Quaternion = tuple[Finite, Finite, Finite, Finite]
Row = tuple[Finite, Finite, Finite, Finite]
Matrix4 = tuple[Row, Row, Row, Row]
Point = tuple[float, float]

MAX_REFERENCES = 32
NAME_LENGTH, LINE_LENGTH = 512, 1024
"""The longest name of a photo, and the longest line that describes a camera."""


class Message(BaseModel):
    """Anything that is sent; a field that is not in the contract is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


# Asking


class Prior(Message):
    """About where a photo was taken. It brings references and may be wrong."""

    cam_center_world: Vector3
    quat_wxyz: Quaternion | None = None
    """Along the request's `axes`; leave it out where the direction is not known."""
    radius_m: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """How far off the place may be."""


class LocalizeOptions(Message):
    """What a request may say beside its photo."""

    focal_px: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Focal length in pixels of the photo; without it, and without `camera`, it is searched, about where EXIF says."""
    camera: Annotated[str, Field(max_length=LINE_LENGTH)] | None = None
    """The camera in COLMAP's notation, for example `PINHOLE 640 480 525 525 320 240`."""
    prior: Prior | None = None
    """In a form: as JSON."""
    num_references: Annotated[int, Field(ge=1, le=MAX_REFERENCES)] = 7
    """Photos of the map that the query is compared with."""
    solver: Solver = "auto"
    """The pose by matches where they agree, the network's, or matches only."""
    axes: Axes = "opencv"
    """Camera axes that poses are said along."""
    with_matches: bool = False
    """Whether to send matches, for drawing."""

    @field_validator("prior", mode="before")
    @classmethod
    def _prior_of_a_form(cls, value: Any) -> Any:
        return Prior.model_validate_json(value) if isinstance(value, str) else value


class LocalizeJson(LocalizeOptions):
    """A query as JSON."""

    image_base64: str
    """The photo's file: JPEG, PNG, WebP, or HEIC where the service can read it."""


class LocalizeForm(LocalizeOptions):
    """A query as multipart/form-data."""

    image: Annotated[bytes, Field(json_schema_extra={"format": "binary"})]
    """The photo's file: JPEG, PNG, WebP, or HEIC where the service can read it."""


class FrameOptions(Message):
    """What is said of a photo that comes into a map."""

    name: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)]
    """Unique in the map, for example `seq-01/frame-000000.png`."""
    T_world_cam: Matrix4
    """In the map's world, OpenCV's camera axes; in a form as JSON."""
    focal_px: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    camera: Annotated[str, Field(max_length=LINE_LENGTH)] | None = None
    """The camera in COLMAP's notation."""
    sequence: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH)] | None = None
    """Without it, the folder in `name`."""

    @field_validator("T_world_cam", mode="before")
    @classmethod
    def _matrix_of_a_form(cls, value: Any) -> Any:
        return _Matrix.model_validate_json(f'{{"rows": {value}}}').rows if isinstance(value, str) else value


class _Matrix(Message):
    rows: Matrix4


class FrameForm(FrameOptions):
    """A photo that comes into a map, as multipart/form-data."""

    image: Annotated[bytes, Field(json_schema_extra={"format": "binary"})]
    """The photo's file: JPEG, PNG, WebP, or HEIC where the service can read it."""


# Answers


class GeoPosition(Message):
    """A place on Earth (WGS 84): degrees, degrees, metres above the ellipsoid or as the map's points told heights."""

    lat: float
    lon: float
    h: float


class GeoQuaternion(Message):
    """Takes the camera's axes to east, north and up at its place."""

    x: float
    y: float
    z: float
    w: float


class GeoPose(Message):
    """A pose on Earth as OGC GeoPose's Basic-Quaternion says it."""

    position: GeoPosition
    quaternion: GeoQuaternion


class DrawnMatches(Message):
    """Matches with a reference for drawing, in fractions of width and height within [0, 1], at most 80."""

    query_xy: list[Point]
    """In the photo that was sent, upright."""
    ref_xy: list[Point]
    """In the reference's thumbnail."""
    inlier: list[bool]
    """Whether they agree with the pose."""


class Reference(Message):
    """A photo of the map that the query was compared with."""

    name: str
    similarity: float
    """Of its descriptor and the query's, a cosine."""
    overlap: float
    """Share of the query that it sees, as the network guesses."""
    num_matches: int
    num_inliers: int
    T_world_cam: Matrix4
    """Along the request's `axes`."""
    matches: DrawnMatches | None
    """Only with `with_matches`."""


class LatencyMs(Message):
    """Where the time went, in milliseconds."""

    decode: float
    encode: float
    retrieve: float
    match: float
    solve: float
    queue: float
    """Waiting for the network and the solver."""
    total: float
    """From the request's first line to its answer."""


class AnswerMap(Message):
    """The map that an answer is of."""

    name: str
    revision: int
    """The number of the last change that it had seen."""


class LocalizeAnswer(Message):
    """Where a photo was taken, or why that cannot be said."""

    localized: bool
    reason: str
    """Why the photo was not localized, or what is not known of its pose; empty where all is well."""
    confidence: float
    """The chance that the pose is within 25 cm and 10 degrees of the truth; a guess where the scale is not known."""
    T_world_cam: Matrix4 | None
    quat_wxyz: Quaternion | None
    cam_center_world: Vector3 | None
    orientation_wxyz: Quaternion | None
    """Where the camera looks: as in the pose, or without one, where that is sure and the place is not."""
    covariance: list[list[float]] | None
    """6 x 6: of the rotation vector in the camera's frame (radians), then of the centre in the world (metres)."""
    position_sigma_m: float | None
    rotation_sigma_deg: float | None
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
    axes: Axes
    geopose: GeoPose | None
    """Where the map is georeferenced; None along left-handed axes (unity), which GeoPose does not know."""
    references: list[Reference]
    latency_ms: LatencyMs
    map: AnswerMap


class Frame(Message):
    """A photo of a map, along OpenCV's camera axes."""

    name: str
    T_world_cam: Matrix4
    width: int
    height: int
    focal_px: float | None
    """In pixels of the photo; None where it is not known."""
    sequence: str | None


class Frames(Message):
    """A page of a map's photos, in the order in which they came."""

    total: int
    offset: int
    frames: Sequence[Frame]


class MapSummary(Message):
    """A map that is served."""

    name: str
    num_frames: int
    revision: int
    scale_is_known: bool
    georeferenced: bool
    weights_sha256: str
    writable: bool
    """Whether this request's key may change it."""


class Extent(Message):
    """The box around a map's camera centres, in its world."""

    min: Vector3
    max: Vector3


class MapDetails(MapSummary):
    """A map with where its cameras are."""

    extent_world: Extent | None
    """None for a map without photos."""


class Maps(Message):
    """The maps that this request's key may see."""

    maps: list[MapSummary]


class Health(Message):
    """Whether the process lives."""

    status: Literal["ok"] = "ok"


class Readiness(Message):
    """Whether every map can be asked."""

    status: Literal["ready", "not ready"]
    not_ready: list[str]
    """Maps that cannot be read just now, as far as this request's key may see them."""


class ErrorBody(Message):
    """What went wrong."""

    code: str
    """For programs, for example `bad_image`."""
    message: str
    """For people: what was expected, what was found, what to do."""


class Error(Message):
    """Every answer that is not what was asked for."""

    error: ErrorBody
