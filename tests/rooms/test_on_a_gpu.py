"""The same photographs on a GPU, where there is one, up to rounding."""

import pytest
import torch
from tiny_rooms import HEIGHT, LAYOUT, WIDTH, handheld_views

from relograph.rooms.layout import to_tensors
from relograph.rooms.photograph import Darkroom, Effects, photograph, random_optics
from relograph.rooms.world import Rooms, Views


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_the_same_photographs_as_a_cpu(homes, atlas):
    rooms = Rooms.cat([to_tensors(home, LAYOUT) for home in homes[:6]])
    views = Views.cat([handheld_views(home, 1, seed=seed) for seed, home in enumerate(homes[:6])])
    optics = random_optics(6, WIDTH, torch.Generator().manual_seed(0))
    (image_cpu, depth_cpu_m), (image_gpu, depth_gpu_m) = (
        photograph(
            rooms.to(device),
            views.to(device),
            atlas.to(device),
            optics.to(device),
            num_boxes=LAYOUT.num_boxes,
            height=HEIGHT,
            width=WIDTH,
            effects=Effects(),
            darkroom=Darkroom.on("cpu"),  # not compiled: a compiler cannot see through the checks of shapes in tests
        )
        for device in ("cpu", "cuda")
    )
    # A ray that grazes an edge may be a hit here and a miss there.
    assert ((depth_cpu_m - depth_gpu_m.cpu()).abs() > 1e-3 * depth_cpu_m).float().mean() < 0.005
    assert ((image_cpu.int() - image_gpu.cpu().int()).abs() > 2).float().mean() < 0.01
