"""COLMAP's camera models and ours.

COLMAP names a model and lists its parameters in an order of its own; `Camera` has one field each. The same notation,
without the camera's id, is what the side file `camera.txt` holds: `OPENCV 640 480 525 525 320 240 0.01 0 0 0`.
"""

from collections.abc import Sequence

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Camera
from relograph.geometry.camera import CameraModel
from relograph.scenes.names import parse_float, parse_int

PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "FULL_OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "SIMPLE_RADIAL_FISHEYE": ("f", "cx", "cy", "k1"),
    "RADIAL_FISHEYE": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"),
}
"""What each of COLMAP's models that we know lists, in its order."""


def camera_from_colmap(model: str, width: int, height: int, params: Sequence[float], where: str) -> Camera:
    """The camera that COLMAP describes by a model's name and parameters.

    Example:
        >>> camera_from_colmap("SIMPLE_RADIAL", 640, 480, [500.0, 320.0, 240.0, 0.1], where="cameras.txt").distortion
        (0.1, 0.0, 0.0, 0.0)
    """
    names = PARAMETERS.get(model)
    if names is None:
        raise DatasetError(
            f"{where}: expected one of the camera models {', '.join(PARAMETERS)}, found {model[:40]!r}. "
            "Undistort the images first (colmap image_undistorter)."
        )
    if len(params) != len(names):
        raise DatasetError(
            f"{where}: expected {len(names)} parameters for the camera model {model} ({' '.join(names)}), "
            f"found {len(params)}. Correct it."
        )
    value = dict(zip(names, (float(param) for param in params), strict=True))
    if model == "FULL_OPENCV" and any(value[name] != 0.0 for name in ("k4", "k5", "k6")):
        raise DatasetError(
            f"{where}: expected a distortion without k4, k5 and k6, found them in a FULL_OPENCV camera. "
            "Undistort the images first (colmap image_undistorter)."
        )
    kind: CameraModel
    coefficients: tuple[str, ...]
    if model.endswith("PINHOLE"):
        kind, coefficients = "pinhole", ()
    elif model.endswith("FISHEYE"):
        kind, coefficients = "fisheye", ("k1", "k2", "k3", "k4")
    elif model == "FULL_OPENCV":
        kind, coefficients = "opencv", ("k1", "k2", "p1", "p2", "k3")
    else:
        kind, coefficients = "opencv", ("k1", "k2", "p1", "p2")
    distortion = tuple(value.get(name, 0.0) for name in coefficients)
    focal_x, focal_y = (value["f"], value["f"]) if "f" in value else (value["fx"], value["fy"])
    try:
        return Camera(width, height, focal_x, focal_y, value["cx"], value["cy"], distortion, kind)
    except GeometryError as error:
        raise GeometryError(f"{where}: {error}") from error


def camera_to_colmap(camera: Camera) -> tuple[str, list[float]]:
    """The name and the parameters of the COLMAP model that says the same as `camera`.

    Example:
        >>> camera_to_colmap(Camera.from_focal(640, 480, 500.0))
        ('PINHOLE', [500.0, 500.0, 320.0, 240.0])
    """
    params = [camera.fx, camera.fy, camera.cx, camera.cy, *camera.distortion]
    if camera.model == "pinhole":
        return "PINHOLE", params
    if camera.model == "fisheye":
        return "OPENCV_FISHEYE", params
    if len(camera.distortion) == 5:
        return "FULL_OPENCV", [*params, 0.0, 0.0, 0.0]
    return "OPENCV", params


def parse_camera_line(line: str, where: str) -> Camera:
    """The camera in one line of COLMAP's notation without the id: model, width, height, parameters.

    Example:
        >>> parse_camera_line("PINHOLE 640 480 525 525 320 240", where="camera.txt").fx
        525.0
    """
    tokens = line.split()
    if len(tokens) < 3:
        raise DatasetError(
            f"{where}: expected a camera as MODEL WIDTH HEIGHT PARAMETERS, found {line[:60]!r}. "
            "Write, for example: PINHOLE 640 480 525 525 320 240"
        )
    width, height = parse_int(tokens[1], where), parse_int(tokens[2], where)
    return camera_from_colmap(tokens[0], width, height, [parse_float(token, where) for token in tokens[3:]], where)


def camera_line(camera: Camera) -> str:
    """`camera` in one line of COLMAP's notation without the id, exact to the last bit.

    Example:
        >>> camera_line(Camera.from_focal(640, 480, 500.0))
        'PINHOLE 640 480 500.0 500.0 320.0 240.0'
    """
    model, params = camera_to_colmap(camera)
    return " ".join([model, str(camera.width), str(camera.height), *(repr(float(param)) for param in params)])


def parse_camera_file(text: str, where: str) -> Camera:
    """The camera in the text of the side file `camera.txt`; lines that start with # are comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) != 1:
        raise DatasetError(
            f"{where}: expected one line with a camera, found {len(lines)}. "
            "Write, for example: PINHOLE 640 480 525 525 320 240"
        )
    return parse_camera_line(lines[0], where)
