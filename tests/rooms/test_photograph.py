"""What a phone does to the light: each effect in its own way, and nothing by chance but by its seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from tiny_rooms import HEIGHT, LAYOUT, WIDTH, handheld_views, perfect_optics, shoot
from torch import Generator, Tensor

from relograph.rooms.layout import to_tensors
from relograph.rooms.photograph import (
    Darkroom,
    Effects,
    Optics,
    blur_taps,
    develop,
    disc_of_confusion,
    grey,
    pixel_noise,
    random_optics,
    some_spoilt,
)
from relograph.rooms.world import Rooms, Views

NONE = Effects.none()


def flat_light(level: float = 0.3) -> Tensor:
    """The same light on every pixel."""
    return torch.full((1, 3, HEIGHT, WIDTH), level)


def stripes(axis: str, width: int = WIDTH) -> Tensor:
    """Light that changes along one axis only, with a period of four pixels: [1, 3, H, W]."""
    x, y = torch.arange(width), torch.arange(HEIGHT)[:, None]
    along = (x + 0 * y) if axis == "x" else (y + 0 * x)
    return (0.2 + 0.6 * (along // 2 % 2)).expand(1, 3, -1, -1).contiguous()


def blurred(light: Tensor, effects: Effects, depth_m: Tensor | None = None, **optics: Tensor) -> Tensor:
    depth_m = torch.full_like(light[:, 0], 2.0) if depth_m is None else depth_m
    return Darkroom.on("cpu").blurred(light, depth_m, replace(perfect_optics(), **optics), effects)


def contrast(light: Tensor) -> float:
    """Standard deviation away from the borders."""
    return float(light[..., 5:-5, 5:-5].std())


def linear(image: Tensor) -> Tensor:
    """The light of an 8-bit photograph without tone curve, up to rounding."""
    return (image / 255) ** 2.2


@pytest.fixture
def scene(homes) -> tuple[Rooms, Views]:
    """Three views in three homes."""
    rooms = Rooms.cat([to_tensors(home, LAYOUT) for home in homes[:3]])
    return rooms, Views.cat([handheld_views(home, 1, seed=seed) for seed, home in enumerate(homes[:3])])


# Chance


def test_a_photograph_is_the_same_alone_in_company_and_in_any_order(scene, atlas):
    rooms, views = scene
    optics = random_optics(3, WIDTH, Generator().manual_seed(0))
    images, depth_m = shoot(rooms, views, atlas, optics, Effects())
    order = torch.tensor([2, 0, 1])
    shuffled, _ = shoot(rooms[order], views[order], atlas, optics[order], Effects())
    assert torch.equal(shuffled, images[order])
    alone, alone_depth_m = shoot(rooms[1:2], views[1:2], atlas, optics[1:2], Effects())
    assert torch.equal(alone[0], images[1])
    assert torch.equal(alone_depth_m[0], depth_m[1])


def test_a_seed_means_one_photograph(scene, atlas):
    rooms, views = scene
    first, again, other = (
        shoot(rooms, views, atlas, random_optics(3, WIDTH, Generator().manual_seed(seed)), Effects())[0]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert (first != other).float().mean() > 0.5


def test_without_effects_the_state_of_the_camera_changes_nothing(scene, atlas):
    rooms, views = scene
    light_gain = torch.ones(3, 3)  # the home's own light, which is no effect of the camera
    images = [
        shoot(
            rooms, views, atlas, replace(random_optics(3, WIDTH, Generator().manual_seed(seed)), light_gain=light_gain)
        )
        for seed in (0, 1)
    ]
    assert torch.equal(images[0][0], images[1][0])


@pytest.mark.parametrize("effect", list(vars(NONE)))
def test_each_effect_changes_the_photograph_and_never_the_depth(scene, atlas, effect):
    rooms, views = scene
    optics = random_optics(3, WIDTH, Generator().manual_seed(0))
    optics = replace(optics, motion_px=torch.full((3, 2), 2.0), blur_px=torch.full((3,), 3.0))
    plain, plain_depth_m = shoot(rooms, views, atlas, optics, NONE)
    changed, depth_m = shoot(rooms, views, atlas, optics, replace(NONE, **{effect: True}))
    assert (plain != changed).float().mean() > 0.05
    assert torch.equal(plain_depth_m, depth_m)


def test_random_optics_stay_within_what_phones_do():
    optics = random_optics(2000, 320, Generator().manual_seed(0))
    assert optics.light_gain.min() > 0
    assert optics.exposure.min() > 0.3
    assert optics.exposure.max() < 3
    assert (optics.vignetting >= 0).all()
    assert (optics.vignetting <= 0.4).all()
    assert (optics.noise >= 0).all()
    assert 0.3 < (optics.motion_px == 0).all(dim=1).float().mean() < 0.7  # half the shots are held still
    assert_allclose(optics.white_balance.log().mean(), 0, atol=0.02)
    assert len(optics.noise_seed.unique()) > 1990


def test_blur_keeps_its_share_of_the_image_at_every_size():
    small, large = (random_optics(50, width, Generator().manual_seed(0)) for width in (160, 640))
    assert_allclose(large.motion_px, 4 * small.motion_px, rtol=1e-5)
    assert_allclose(large.blur_px, 4 * small.blur_px, rtol=1e-5)


# Noise


def test_noise_has_mean_zero_and_variance_one():
    noise = pixel_noise(torch.arange(8, dtype=torch.int32), 64, 64)  # 98,304 values
    assert abs(float(noise.mean())) < 0.02
    assert_allclose(noise.var(), 1, atol=0.03)


def test_noise_is_independent_between_pixels_channels_and_photographs():
    noise = pixel_noise(torch.tensor([5, 6, 123456], dtype=torch.int32), 64, 64).double()
    first = noise[0, 0]
    for other in (noise[0, 1], noise[1, 0], noise[2, 0], first.roll(1, 0), first.roll(1, 1), first.roll(7, 1)):
        correlation = float((first * other).mean())
        assert abs(correlation) < 0.07  # 4.5 standard deviations of 1 / 64


def test_noise_spreads_a_flat_grey_and_leaves_its_mean():
    optics = replace(perfect_optics(), noise=torch.tensor([0.02]))
    clean = develop(flat_light(), optics, NONE).float()
    noisy = develop(flat_light(), optics, replace(NONE, noise=True)).float()
    assert clean.std() == 0
    assert noisy.std() > 1
    assert_allclose(linear(noisy).mean(), 0.3, rtol=0.02)
    # Read noise 0.02 times the root of 0.25 + light.
    assert_allclose(linear(noisy).std(), 0.02 * np.sqrt(0.25 + 0.3), rtol=0.1)


def test_bright_pixels_are_noisier_than_dark_ones_before_the_tone_curve():
    optics = replace(perfect_optics(), noise=torch.tensor([0.01]))
    spread = [linear(develop(flat_light(level), optics, replace(NONE, noise=True))).std() for level in (0.1, 0.7)]
    assert spread[1] > 1.3 * spread[0]


# Blur


def test_motion_smears_along_the_motion_only():
    effects = replace(NONE, motion_blur=True)
    still = {axis: contrast(blurred(stripes(axis), effects)) for axis in "xy"}
    sideways = {axis: contrast(blurred(stripes(axis), effects, motion_px=torch.tensor([[4.0, 0.0]]))) for axis in "xy"}
    assert sideways["x"] < 0.35 * still["x"]
    assert_allclose(sideways["y"], still["y"], rtol=1e-4)


@pytest.mark.parametrize("motion_px", [(6.0, 0.0), (0.0, 6.0), (4.0, -4.0)])
def test_motion_spreads_a_point_evenly_along_its_path_and_about_its_place(motion_px):
    light = torch.zeros(1, 3, HEIGHT, WIDTH)
    light[..., 12, 16] = 1
    spot = blurred(light, replace(NONE, motion_blur=True), motion_px=torch.tensor([motion_px]))[0, 0].double()
    y, x = torch.meshgrid(torch.arange(HEIGHT) - 12.0, torch.arange(WIDTH) - 16.0, indexing="ij")
    assert_allclose(spot.sum(), 1, rtol=1e-5)
    assert_allclose([(spot * x).sum(), (spot * y).sum()], [0, 0], atol=0.15)
    # An even spread over a length has a twelfth of its square as variance; the lens adds its own, which is small.
    covariance = [(spot * a * b).sum() for a, b in ((x, x), (x, y), (y, y))]
    dx, dy = motion_px
    assert_allclose(covariance, np.array([dx * dx, dx * dy, dy * dy]) / 12, atol=1.0)


def test_motion_over_a_whole_period_wipes_a_pattern_out():
    # Stripes of period 4 pixels, seen through a window of 4 pixels: the mean everywhere, 0.5.
    effects = replace(NONE, motion_blur=True)
    smeared = blurred(stripes("x"), effects, motion_px=torch.tensor([[4.0, 0.0]]))
    assert_allclose(smeared[..., 5:-5, 5:-5], 0.5, atol=0.08)


def test_blur_leaves_what_it_blurs_where_it_is():
    taps = blur_taps(torch.device("cpu"))
    assert_allclose(taps.mean(dim=0), [0, 0, 0], atol=1e-7)
    assert taps[:, 1:].norm(dim=1).max() < 1.1  # within the disc, almost


def test_blur_keeps_the_brightness():
    light = torch.rand(1, 3, HEIGHT, WIDTH, generator=Generator().manual_seed(0))
    effects = replace(NONE, motion_blur=True, defocus=True)
    after = blurred(light, effects, motion_px=torch.tensor([[3.0, 1.0]]), blur_px=torch.tensor([2.0]))
    assert_allclose(after.mean(), light.mean(), rtol=0.02)
    assert after.min() >= light.min() - 1e-5
    assert after.max() <= light.max() + 1e-5


def test_defocus_blurs_what_is_out_of_focus_and_not_what_is_in_it():
    light, effects = stripes("y", width=200), replace(NONE, defocus=True)
    left, right = slice(0, 95), slice(105, 200)
    depth_m = torch.full_like(light[:, 0], 2.0)
    depth_m[..., 100:] = 0.4  # the right half is two dioptres nearer than the focus
    after = blurred(light, effects, depth_m, focus_m=torch.tensor([2.0]), blur_px=torch.tensor([1.5]))
    assert torch.equal(after[..., left], blurred(light, effects)[..., left])
    assert contrast(after[..., right]) < 0.5 * contrast(after[..., left])


@pytest.mark.parametrize("depth_m", [0.3, 2.0, 30.0])
def test_a_lens_without_depth_of_field_is_sharp_at_every_depth(depth_m):
    at = torch.full((1, HEIGHT, WIDTH), depth_m)
    after = blurred(stripes("y"), replace(NONE, defocus=True), at, blur_px=torch.tensor([0.0]))
    assert torch.equal(after, blurred(stripes("y"), replace(NONE, defocus=True)))


# Exposure and colour


def test_the_exposure_takes_the_strength_of_the_light_out():
    light = 0.05 + torch.rand(1, 3, HEIGHT, WIDTH, generator=Generator().manual_seed(0))
    effects = replace(NONE, exposure=True)
    dim, bright = (develop(factor * light, perfect_optics(), effects).int() for factor in (0.5, 8.0))
    assert (dim - bright).abs().max() <= 1
    assert 100 < dim.float().mean() < 180


def test_without_exposure_twice_the_light_is_twice_as_bright():
    once, twice = (linear(develop(flat_light(level), perfect_optics(), NONE)).mean() for level in (0.2, 0.4))
    assert_allclose(twice / once, 2, rtol=0.02)


def test_an_exposure_error_makes_the_photograph_brighter_or_darker():
    effects = replace(NONE, exposure=True)
    mean = [
        float(develop(flat_light(), replace(perfect_optics(), exposure=torch.tensor([gain])), effects).float().mean())
        for gain in (0.7, 1.0, 1.4)
    ]
    assert mean[0] + 10 < mean[1] < mean[2] - 10


def test_a_window_in_the_picture_does_not_turn_the_room_black():
    light = flat_light(0.3)
    light[..., :8, :8] = 30.0  # a twelfth of the image, a hundred times brighter
    image = develop(light, perfect_optics(), replace(NONE, exposure=True))
    assert image[..., 10:, 10:].float().mean() > 60
    assert image[..., :8, :8].min() > 250


def test_a_dark_cellar_does_not_become_a_flash_of_noise():
    image = develop(flat_light(0.0), perfect_optics(), replace(NONE, exposure=True))
    assert image.max() < 10


def test_white_balance_shifts_the_colours_by_its_gains():
    optics = replace(perfect_optics(), white_balance=torch.tensor([[1.2, 1.0, 0.8]]))
    image = linear(develop(flat_light(), optics, replace(NONE, white_balance=True)))
    assert_allclose(image.mean(dim=(0, 2, 3)) / 0.3, [1.2, 1.0, 0.8], rtol=0.02)


def test_photographs_without_colour_are_those_of_pillow():
    every_colour = torch.randint(0, 256, (2, 3, 300, 200), dtype=torch.uint8, generator=Generator().manual_seed(0))
    for image, without_colour in zip(every_colour, grey(every_colour), strict=True):
        expected = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"))
        assert_array_equal(without_colour, np.stack([expected] * 3))


def test_a_share_of_shots_goes_wrong_in_one_way_each():
    usual = random_optics(10_000, 320, Generator().manual_seed(0))
    spoilt = some_spoilt(usual, 0.4, 320, np.random.default_rng(0))
    stops = torch.log2(spoilt.exposure / usual.exposure)
    faults = {
        "too light": stops > 0.5,
        "too dark": stops < -0.5,
        "off colour": (spoilt.white_balance != usual.white_balance).any(dim=1),
        "out of focus": spoilt.focus_m != usual.focus_m,
    }
    counts = torch.stack(list(faults.values())).sum(dim=0)
    assert counts.max() == 1
    for found in faults.values():
        assert abs(float(found.double().mean()) - 0.1) < 0.01  # three standard deviations
    assert stops[faults["too light"]].min() >= 1
    assert stops[faults["too light"]].max() <= 2.5
    assert stops[faults["too dark"]].min() >= -4
    assert torch.equal(spoilt.noise != usual.noise, faults["too dark"])
    assert torch.equal(spoilt.light_gain, usual.light_gain)
    radius_px = disc_of_confusion(torch.full((10_000, 1, 320), 2.0), spoilt, Effects())[faults["out of focus"]]
    assert 1 < radius_px.min() < radius_px.max() < 4
    none = some_spoilt(usual, 0.0, 320, np.random.default_rng(0))
    assert all(torch.equal(part, vars(usual)[name]) for name, part in vars(none).items())


def test_vignetting_darkens_the_corners_and_not_the_middle():
    optics = replace(perfect_optics(), vignetting=torch.tensor([0.4]))
    image = linear(develop(flat_light(0.8), optics, replace(NONE, vignetting=True)))[0, 0] / 0.8
    # By hand: 1 - 0.4 (x^2 + y^2) / 2, x and y from -1 to 1 at the image's edges; pixel centres lie half a pixel in.
    corner = 1 - 0.4 * ((1 - 1 / WIDTH) ** 2 + (1 - 1 / HEIGHT) ** 2) / 2
    assert_allclose([image[0, 0], image[0, -1], image[-1, 0], image[-1, -1]], corner, rtol=0.02)
    assert_allclose(image[HEIGHT // 2, WIDTH // 2], 1, rtol=0.02)


def test_no_light_however_strange_gives_anything_but_a_photograph():
    light = torch.tensor([0.0, 1e-8, 1e4, -0.1])[:, None, None, None].expand(-1, 3, HEIGHT, WIDTH).contiguous()
    optics = Optics(*(value.expand(4, *value.shape[1:]) for value in vars(perfect_optics()).values()))
    for effects in (NONE, Effects()):
        image = develop(light, optics, effects)
        assert image.dtype == torch.uint8
        assert image.shape == light.shape
