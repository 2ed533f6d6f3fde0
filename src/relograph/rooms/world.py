"""What the ray caster needs to know of a batch of rooms and of the cameras in them, as plain tensors.

Every solid is a unit box or a unit cylinder seen through an affine map: `unit = unit_from_room @ (point - center)`.
One map covers thin slabs, planes, tilted books and round tables, and a ray meets them all with the same few lines.

The room frame: metres, z up, the floor at z = 0.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

NUM_LIGHTS = 3


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. A copy to a GPU goes through locked memory: any other waits until the GPU is idle."""
    if torch.device(device).type == "cuda" and not tensor.is_cuda:
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


Bundle = TypeVar("Bundle", bound="TensorBundle")  # not typing.Self, which a checker at run time cannot follow


@dataclass(frozen=True)
class TensorBundle:
    """A frozen record of tensors that share their first dimension."""

    def to(self: Bundle, device: torch.device | str) -> Bundle:
        """The same record on another device."""
        return type(self)(*(sent(getattr(self, field.name), device) for field in fields(self)))

    def __getitem__(self: Bundle, index: Tensor | slice) -> Bundle:
        """The chosen entries; an index may repeat."""
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def cat(cls: type[Bundle], bundles: list[Bundle]) -> Bundle:
        """One record with the entries of all."""
        return cls(*(torch.cat([getattr(bundle, field.name) for bundle in bundles]) for field in fields(cls)))


@dataclass(frozen=True)
class Rooms(TensorBundle):
    """B rooms with K solids each: first the shell (seen from inside), then `num_boxes - 1` boxes, then cylinders."""

    unit_from_room: Float[Tensor, "B K 3 3"]
    """Rows are the solid's axes divided by its half sizes. A cylinder's axis is the third."""
    center: Float[Tensor, "B K 3"]
    reach_m: Float[Tensor, "B K 3"]
    """Half the size of the box along x, y and z that holds the solid."""
    thickness_m: Float[Tensor, "B K"]
    """Smallest full size: a shadow's soft edge is never wider than its caster is thick."""
    casts_shadow: Float[Tensor, "B K"]
    """1 or 0. The shell has every light inside it, and a lamp does not shade itself."""
    face_texture: Int[Tensor, "B K 6"]
    """Texture of the faces -x +x -y +y -z +z; a cylinder's side is face 0, its ends are faces 4 and 5."""
    texture_scale: Float[Tensor, "B K 3"]
    """Texture periods from the centre to the face, along each axis."""
    texture_offset: Float[Tensor, "B K 3"]
    tint: Float[Tensor, "B K 3"]
    """Plain colour, linear."""
    contrast: Float[Tensor, "B K"]
    """How much of the texture shows: 0 is the plain colour, 1 the texture alone."""
    emission: Float[Tensor, "B K"]
    """Light that the surface gives off by itself: windows, lamps, screens."""
    gloss: Float[Tensor, "B K"]
    is_cylinder: Float[Tensor, "B K"]
    light_position: Float[Tensor, "B L 3"]
    light_rgb: Float[Tensor, "B L 3"]
    light_radius_m: Float[Tensor, "B L"]
    ambient_rgb: Float[Tensor, "B 3"]


@dataclass(frozen=True)
class Views(TensorBundle):
    """B cameras. `R` and `center` are `T_room_cam`; the lens has radial distortion k1, k2 as OpenCV defines it."""

    R_room_cam: Float[Tensor, "B 3 3"]
    center: Float[Tensor, "B 3"]
    focal_px: Float[Tensor, "B 2"]
    principal_px: Float[Tensor, "B 2"]
    distortion: Float[Tensor, "B 2"]
