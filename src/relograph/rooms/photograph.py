"""From light to a photograph: what a phone's lens, sensor and software do to the ray caster's picture.

Blur and defocus are done in image space. Every random number comes in from outside (`Optics`) or from a hash of the
pixel's place, so a photograph depends on its seed alone: not on the device, the batch or the order of rendering.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from relograph.compiling import compiled
from relograph.rooms.raycast import Kernels, render
from relograph.rooms.textures import TextureAtlas
from relograph.rooms.world import NUM_LIGHTS, Rooms, TensorBundle, Views

NUM_BLUR_TAPS = 8
NEAR_FOCUS_M = 0.15


@dataclass(frozen=True, kw_only=True)
class Effects:
    """Which parts of the camera are simulated."""

    shadows: bool = True
    """Soft shadows from every light; without them light goes through furniture."""
    exposure: bool = True
    """Automatic exposure with an error, and a tone curve; without it a fixed gain."""
    white_balance: bool = True
    """Colour gains that do not quite match the light."""
    vignetting: bool = True
    """Darker corners."""
    motion_blur: bool = True
    """Smear along the camera's motion."""
    defocus: bool = True
    """Blur of what is nearer or farther than the focus."""
    noise: bool = True
    """Shot and read noise of the sensor."""

    @classmethod
    def none(cls) -> "Effects":
        """Everything off: plain shading."""
        return cls(**{field.name: False for field in fields(cls)})


@dataclass(frozen=True)
class Optics(TensorBundle):
    """The state of B cameras at the moment of the shot."""

    light_gain: Float[Tensor, "B L"]
    """Brightness of each light of the home at that time of day."""
    exposure: Float[Tensor, "B"]
    """Gain on top of the automatic exposure."""
    white_balance: Float[Tensor, "B 3"]
    vignetting: Float[Tensor, "B"]
    """Share of light lost in the corners."""
    motion_px: Float[Tensor, "B 2"]
    """Path of a far point over the image while the shutter is open."""
    focus_m: Float[Tensor, "B"]
    blur_px: Float[Tensor, "B"]
    """Radius in pixels of the blur one dioptre away from the focus."""
    noise: Float[Tensor, "B"]
    """Read noise, as a share of white."""
    noise_seed: Int[Tensor, "B"]


def random_optics(count: int, width: int, generator: Generator) -> Optics:
    """Handheld phone shots in ordinary light, on the CPU; blur is in proportion to the image's `width`."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    moving = (torch.rand(count, 1, generator=generator) < 0.5) * width / 320
    return Optics(
        light_gain=torch.exp(0.35 * normal(NUM_LIGHTS)),
        exposure=torch.exp(0.2 * normal()),
        white_balance=torch.exp(0.08 * normal(3)),
        vignetting=uniform(0.0, 0.4),
        motion_px=moving * 1.8 * normal(2),
        focus_m=uniform(0.8, 4.0),
        blur_px=uniform(0.0, 2.0) * width / 320,
        noise=0.02 * uniform(0.0, 1.0) ** 2,
        noise_seed=torch.randint(0, 2**31 - 1, (count,), generator=generator, dtype=torch.int32),
    )


def some_spoilt(optics: Optics, share: float, width: int, rng: np.random.Generator) -> Optics:
    """The same shots, of which a share went wrong, each in one way: too light, dark and noisy, under a light of another
    colour, or focused on something right before the lens."""
    count = len(optics.exposure)

    def drawn(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.float32))

    fault = np.where(rng.random(count) < share, rng.integers(0, 4, count), -1)
    too_light, too_dark, off_colour, out_of_focus = (torch.from_numpy(fault == kind) for kind in range(4))
    stops = drawn(rng.uniform(1.0, 2.5, count)) * too_light - drawn(rng.uniform(1.0, 4.0, count)) * too_dark
    warmth, tint = rng.normal(0.0, 0.4, (count, 1)), rng.normal(0.0, 0.1, (count, 3))
    colour = drawn(warmth * [1.0, 0.0, -1.0] + tint) * off_colour[:, None]
    return replace(
        optics,
        exposure=optics.exposure * torch.exp2(stops),
        white_balance=optics.white_balance * torch.exp(colour),
        # Things of a room are 5 to 6.5 dioptres away from there: a blur of 1 to 4 pixels.
        focus_m=torch.where(out_of_focus, NEAR_FOCUS_M, optics.focus_m),
        blur_px=torch.where(out_of_focus, drawn(rng.uniform(0.2, 0.6, count)) * width / 320, optics.blur_px),
        noise=torch.where(too_dark, drawn(rng.uniform(0.01, 0.05, count)), optics.noise),
    )


def hash_bits(number: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """32 well mixed bits of each number: two rounds of multiply and shift, which wrap around alike on every device."""
    number = number * 747796405 + 1403630843
    number = (number ^ ((number >> 15) & 0x1FFFF)) * 739982445
    number = (number ^ ((number >> 13) & 0x7FFFF)) * 695872825
    return number ^ ((number >> 16) & 0xFFFF)


def pixel_noise(seed: Int[Tensor, "B"], height: int, width: int) -> Float[Tensor, "B 3 H W"]:
    """Nearly normal noise of variance one: the sum of the four bytes of a hash."""
    place = torch.arange(3 * height * width, device=seed.device, dtype=torch.int32)
    bits = hash_bits(hash_bits(seed)[:, None] + place)  # [B, 3HW]
    total = (bits & 255) + ((bits >> 8) & 255) + ((bits >> 16) & 255) + ((bits >> 24) & 255)
    # Four uniform bytes: mean 4 x 127.5, variance 4 x (256^2 - 1) / 12.
    return ((total - 510) / math.sqrt((256**2 - 1) / 3)).reshape(-1, 3, height, width)


@lru_cache  # to copy it to a GPU for every photograph would wait for the one before
def blur_taps(device: torch.device) -> Float[Tensor, "taps 3"]:
    """Where blur samples the image: the place along the motion, and the place x, y in the disc of confusion."""
    taps = []
    for tap in range(NUM_BLUR_TAPS):
        # A sunflower's seeds fill the disc evenly; 3 steps at a time, so that motion and disc do not go in step.
        seed = (3 * tap) % NUM_BLUR_TAPS + 0.5
        reach, angle = math.sqrt(seed / NUM_BLUR_TAPS), seed * 2.399963
        taps.append([(tap + 0.5) / NUM_BLUR_TAPS - 0.5, reach * math.cos(angle), reach * math.sin(angle)])
    around = torch.tensor(taps)
    return (around - around.mean(dim=0)).to(device)  # so few seeds do not quite balance, and would shift the image


def blur(
    image: Float[Tensor, "B 3 H W"],
    depth_m: Float[Tensor, "B H W"],
    taps: Float[Tensor, "taps 3"],
    optics: Optics,
    effects: Effects,
) -> Float[Tensor, "B 3 H W"]:
    """The mean of a few samples along the motion and over each pixel's disc of confusion."""
    height, width = image.shape[-2:]
    radius_px = disc_of_confusion(depth_m, optics, effects)
    motion_px = optics.motion_px if effects.motion_blur else torch.zeros_like(optics.motion_px)
    y = (torch.arange(height, device=image.device) + 0.5)[:, None]
    x = (torch.arange(width, device=image.device) + 0.5)[None, :]
    total = torch.zeros_like(image)
    for tap in taps:
        at_x = x + motion_px[:, 0, None, None] * tap[0] + radius_px * tap[1]
        at_y = y + motion_px[:, 1, None, None] * tap[0] + radius_px * tap[2]
        at = torch.stack([2 * at_x / width - 1, 2 * at_y / height - 1], dim=-1)
        sample = F.grid_sample(image, at, mode="bilinear", padding_mode="border", align_corners=False)
        total = total + sample / NUM_BLUR_TAPS
    return total


def disc_of_confusion(depth_m: Float[Tensor, "B H W"], optics: Optics, effects: Effects) -> Float[Tensor, "B H W"]:
    """Radius of the blur in pixels: half a pixel is what the best lens and the colour filter blur in any case."""
    if not effects.defocus:
        return torch.full_like(depth_m, 0.5)
    away = (1 / depth_m.clamp_min(0.1) - 1 / optics.focus_m[:, None, None]).abs()
    return (optics.blur_px[:, None, None] * away).clamp(0.5, 0.02 * depth_m.shape[-1])


def develop(light: Float[Tensor, "B 3 H W"], optics: Optics, effects: Effects) -> UInt8[Tensor, "B 3 H W"]:
    """The light on the sensor as a finished 8-bit photograph."""
    height, width = light.shape[-2:]
    if effects.white_balance:
        light = light * optics.white_balance[:, :, None, None]
    if effects.exposure:
        # The mean of the roots, squared: a bright window does not turn the room black.
        metered = light.clamp_min(0).sqrt().mean(dim=(1, 2, 3)).square()
        light = light * (0.26 * optics.exposure / (metered + 1e-4))[:, None, None, None]
    if effects.vignetting:
        y = (torch.arange(height, device=light.device) + 0.5) / height * 2 - 1
        x = (torch.arange(width, device=light.device) + 0.5) / width * 2 - 1
        from_center2 = 0.5 * (x * x + (y * y)[:, None])  # [H, W], 1 in the corners
        light = light * (1 - optics.vignetting[:, None, None, None] * from_center2)
    if effects.noise:
        # Shot noise grows with the root of the light; its strength goes with the read noise, both with the gain.
        spread = optics.noise[:, None, None, None] * (0.25 + light.clamp_min(0)).sqrt()
        light = light + spread * pixel_noise(optics.noise_seed, height, width)
    shown = 1 - torch.exp(-1.7 * light.clamp_min(0)) if effects.exposure else light.clamp(0, 1)
    return (255 * shown.clamp(1e-6, 1) ** (1 / 2.2) + 0.5).clamp(0, 255).to(torch.uint8)


def grey(images: UInt8[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B 3 H W"]:
    """Photographs without colour: in all three channels the luminance of Rec. 601, rounded as Pillow rounds it.

    Example:
        >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)
        >>> grey(red).flatten().tolist()
        [76, 76, 76]
    """
    red, green, blue = images.int().unbind(dim=1)
    luminance = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16  # in units of 1 / 65536
    return luminance.to(torch.uint8)[:, None].expand(-1, 3, -1, -1)


@dataclass(frozen=True)
class Darkroom:
    """The steps from rooms to photographs, compiled where that pays."""

    kernels: Kernels
    blur: Callable[..., Tensor]
    develop: Callable[..., Tensor]

    @classmethod
    def on(cls, device: torch.device | str) -> "Darkroom":
        """Compiled for a GPU, plain for a CPU."""
        return _compiled_darkroom() if torch.device(device).type == "cuda" else cls(Kernels(), blur, develop)

    def blurred(
        self, light: Float[Tensor, "B 3 H W"], depth_m: Float[Tensor, "B H W"], optics: Optics, effects: Effects
    ) -> Float[Tensor, "B 3 H W"]:
        """The light on the sensor, where the lens and the hand are not perfect."""
        if not (effects.motion_blur or effects.defocus):
            return light
        return self.blur(light, depth_m, blur_taps(light.device), optics, effects)


@cache
def _compiled_darkroom() -> Darkroom:
    # All samples in one kernel: their sum is not written out and read again after each.
    in_one_kernel = {"realize_reads_threshold": 10**6, "realize_opcount_threshold": 10**6}
    return Darkroom(Kernels.on("cuda"), compiled(blur, **in_one_kernel), compiled(develop))


def photograph(
    rooms: Rooms,
    views: Views,
    atlas: TextureAtlas,
    optics: Optics,
    *,
    num_boxes: int,
    height: int,
    width: int,
    effects: Effects,
    darkroom: Darkroom,
) -> tuple[UInt8[Tensor, "B 3 H W"], Float[Tensor, "B H W"]]:
    """A photograph and its exact depth in metres, for one view in each room."""
    light, depth_m = render(
        rooms,
        views,
        atlas,
        num_boxes=num_boxes,
        light_gain=optics.light_gain,
        height=height,
        width=width,
        shadows=effects.shadows,
        kernels=darkroom.kernels,
    )
    return darkroom.develop(darkroom.blurred(light, depth_m, optics, effects), optics, effects), depth_m
