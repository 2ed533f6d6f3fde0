"""The errors that relograph raises on purpose.

Every message has three parts: what was expected, what was found and where, and what to do next. The command line
turns a `RelographError` into one line and exit code 1; anything else is our bug and keeps its traceback.
"""


class RelographError(Exception):
    """What a user can mend: bad input, a bad option, a missing package, a full disk."""


class ConfigError(RelographError):
    """An option, or a combination of options, that makes no sense."""


class DatasetError(RelographError):
    """Something on disk that is missing, damaged or not what it claims to be."""


class GeometryError(RelographError):
    """Numbers that are no pose, no rotation or no camera."""


class MissingExtraError(RelographError):
    """An optional package is not installed. The message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed. Run: pip install 'relograph[{extra}]'"
        )
        self._arguments = (package, extra, purpose)

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:  # or it could not leave a process that it is raised in
        return type(self), self._arguments


class CheckpointError(RelographError):
    """Weights cannot be read, written, or do not fit the model."""


class TrainingError(RelographError):
    """Training cannot go on."""
