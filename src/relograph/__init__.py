"""relograph tells where a photo was taken: the pose of its camera among posed photos of a place.

Names are imported when they are first used, so `import relograph` costs nothing and loads no torch.
"""

from typing import TYPE_CHECKING

from relograph.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    GeometryError,
    MissingExtraError,
    RelographError,
    TrainingError,
)

if TYPE_CHECKING:
    from relograph.client import Client
    from relograph.geometry import Camera, Pose
    from relograph.localization.localizer import Answer, Localizer
    from relograph.localization.prior import Prior
    from relograph.maps import Map
    from relograph.scenes import Frame, Scene
    from relograph.scenes.converting import convert
    from relograph.scenes.opening import open_scene

    __version__: str

__all__ = [
    "Answer",
    "Camera",
    "CheckpointError",
    "Client",
    "ConfigError",
    "DatasetError",
    "Frame",
    "GeometryError",
    "Localizer",
    "Map",
    "MissingExtraError",
    "Pose",
    "Prior",
    "RelographError",
    "Scene",
    "TrainingError",
    "__version__",
    "convert",
    "open_scene",
]

_MODULE_BY_NAME = {
    "Answer": "relograph.localization.localizer",
    "Camera": "relograph.geometry",
    "Client": "relograph.client",
    "Frame": "relograph.scenes",
    "Localizer": "relograph.localization.localizer",
    "Map": "relograph.maps",
    "Pose": "relograph.geometry",
    "Prior": "relograph.localization.prior",
    "Scene": "relograph.scenes",
    "convert": "relograph.scenes.converting",
    "open_scene": "relograph.scenes.opening",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: object = version("relograph")
        except PackageNotFoundError:  # run from a source folder that was never installed
            value = "0+unknown"
    elif name in _MODULE_BY_NAME:
        from importlib import import_module

        value = getattr(import_module(_MODULE_BY_NAME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
