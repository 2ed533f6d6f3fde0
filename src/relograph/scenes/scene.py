"""A place: posed photos in one world frame."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from relograph.errors import DatasetError, GeometryError
from relograph.geometry import Pose
from relograph.scenes.frame import Frame


@dataclass(frozen=True)
class Scene:
    """Frames that share one world frame, in the order of their source."""

    name: str
    root: Path
    """Where it was read from: a folder, whatever the format."""
    format: str
    frames: tuple[Frame, ...]
    warnings: tuple[str, ...] = ()
    """What the reader left out or could not know, a sentence each."""
    scale_is_known: bool = True
    """Whether lengths are metres; else they are in a unit of the scene's own, as those of photos alone are."""

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)

    def __getitem__(self, key: int | str) -> Frame:
        """The frame with that index or name."""
        return self.frames[self._index_by_name(key) if isinstance(key, str) else key]

    @property
    def train(self) -> "Scene":
        """The frames of the training split."""
        return replace(self, frames=tuple(frame for frame in self.frames if frame.split == "train"))

    @property
    def test(self) -> "Scene":
        """The frames of the test split."""
        return replace(self, frames=tuple(frame for frame in self.frames if frame.split == "test"))

    @property
    def sequences(self) -> "dict[str, Scene]":
        """One scene per recorded sequence, in the order of their first frames; frames without one are left out."""
        frames_by_sequence: dict[str, list[Frame]] = {}
        for frame in self.frames:
            if frame.sequence is not None:
                frames_by_sequence.setdefault(frame.sequence, []).append(frame)
        return {name: replace(self, frames=tuple(frames)) for name, frames in frames_by_sequence.items()}

    @cached_property
    def T_world_cam(self) -> Pose:
        """All poses, batched in the order of the frames."""
        if not self.frames:
            return Pose.identity(0)
        return Pose.stack([frame.T_world_cam for frame in self.frames])

    def in_frame(self, T_new_world: Pose) -> "Scene":
        """The same photos with their poses in another world frame."""
        moved = tuple(replace(frame, T_world_cam=T_new_world @ frame.T_world_cam) for frame in self.frames)
        return replace(self, frames=moved)

    def select(self, names: Iterable[str]) -> "Scene":
        """The frames of those names, in the order of `names`."""
        return replace(self, frames=tuple(self[name] for name in names))

    def _index_by_name(self, name: str) -> int:
        index = self._indices.get(name)
        if index is None:
            raise DatasetError(
                f"Scene {self.name}: expected a frame named {name!r}, found none of that name. See scene.frames."
            )
        return index

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {frame.name: index for index, frame in enumerate(self.frames)}


@dataclass
class SceneBuilder:
    """A scene in the making, where a bad frame is an error or, on request, is left out and named in the warnings.

    A reader puts everything that concerns one frame inside `with builder.frame():` and calls `add` there.
    """

    format: str
    root: Path
    skip_bad_frames: bool
    frames: list[Frame] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What goes wrong inside concerns one frame only."""
        try:
            yield
        except (DatasetError, GeometryError) as error:
            if not self.skip_bad_frames:
                raise type(error)(
                    f"{error} Or leave bad frames out with --skip-bad-frames (skip_bad_frames=True)."
                ) from error
            self.warnings.append(f"Left out: {error}")

    def add(self, frame: Frame) -> None:
        """Takes `frame` in, if its name is new and its photo is there."""
        if frame.name in self._names:
            raise DatasetError(
                f"{self.root}: expected every name once, found {frame.name!r} twice. Rename or remove one of the two."
            )
        frame.image.require()
        if frame.depth is not None:
            frame.depth.file.require()
        self._names.add(frame.name)
        self.frames.append(frame)

    def build(self) -> Scene:
        """The scene with all frames added, of which there must be one at least."""
        if not self.frames:
            skipped = f" besides {len(self.warnings)} bad ones" if self.warnings else ""
            raise DatasetError(
                f"{self.root}: expected posed photos in the format {self.format}, found none{skipped}. "
                "Check that this is the scene's folder and that its files are complete."
            )
        name = self.root.resolve().name or self.format
        return Scene(name, self.root, self.format, tuple(self.frames), tuple(self.warnings))
