"""What the Localizer needs of a map, wherever that is kept: in memory, in a folder or in a database."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from relograph.geometry import Pose
from relograph.localization.photos import AnyCamera, WorkingSize
from relograph.models.match_gnn import ImageFeatures
from relograph.models.shipped import LoadedMatchGNN


@runtime_checkable  # the tests check every argument's type while they run
class MapView(Protocol):
    """The photos of a map at one moment, each by its row."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def T_world_cam(self) -> Pose:
        """Of all photos, batch shape [F], float64, on the CPU."""
        ...

    @property
    def cameras(self) -> Sequence[AnyCamera]:
        """In pixels of the photos as they were given."""
        ...

    @property
    def sizes(self) -> Sequence[WorkingSize]: ...
    def __len__(self) -> int: ...

    def nearest(self, descriptor: Float[Tensor, "D"], num: int) -> tuple[list[int], Float[Tensor, "n"]]:
        """Rows of up to `num` photos that look most like a query, most alike first, and the cosines of that."""
        ...

    def similarity(self, descriptor: Float[Tensor, "D"], rows: Sequence[int]) -> Float[Tensor, "R"]:
        """The cosines of a query's descriptor and those of some photos."""
        ...

    def take(
        self, rows: Sequence[int], device: torch.device
    ) -> Iterator[tuple[tuple[int, int], list[int], ImageFeatures]]:
        """Features of some photos, those of one size (height, width) together: which of `rows` they are, and they."""
        ...

    def require(self, network: LoadedMatchGNN) -> None:
        """Raises unless the features are that network's own."""
        ...


@runtime_checkable
class StoredMap(Protocol):
    """A map on disk, which may change between two queries."""

    @property
    def features(self) -> MapView:
        """The photos as they were when the map was last read."""
        ...

    def load_network(self) -> LoadedMatchGNN:
        """That made the features. A method: whoever looks whether something is such a map would read a property."""
        ...

    def answer_with(self, network: LoadedMatchGNN) -> None:
        """Take that network, whose features they have to be, to compute again what is not kept of them."""
        ...
