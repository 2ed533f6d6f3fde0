"""Draws docs/pictures/conventions.png: a camera in the world, and its image.

Run: python docs/pictures/draw_conventions.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from relograph.geometry import Camera, Pose

RED, GREEN, BLUE, INK, GREY, PALE, AMBER = "#c8354a", "#23895a", "#2b62c9", "#22262b", "#5d6873", "#a9b2bc", "#b36b00"
PAPER = "#e3ecfb"

CAMERA = Camera.from_focal(6, 4, 4.6)
# In a world whose z axis is up, a camera that looks along the y axis and 10 degrees down.
T_WORLD_CAM = Pose.from_axis_angle([np.radians(-100.0), 0.0, 0.0], [3.0, 0.0, 2.1])
POINT_CAM = np.array([1.3, 0.35, 3.3])
IMAGE_PLANE_Z = 1.6


def on_page(points_world: Tensor) -> np.ndarray:
    """Page coordinates of world points, in a parallel projection from behind the camera, to its right and above."""
    azimuth, elevation = np.radians(-40.0), np.radians(22.0)
    across = [-np.sin(azimuth), np.cos(azimuth), 0.0]
    up = [-np.cos(azimuth) * np.sin(elevation), -np.sin(azimuth) * np.sin(elevation), np.cos(elevation)]
    return points_world.numpy() @ np.stack([across, up], axis=1)


def in_camera(*xyz: float) -> np.ndarray:
    return on_page(T_WORLD_CAM.apply(list(xyz)))


def arrow(axes: Axes, start: np.ndarray, end: np.ndarray, color: str, width: float = 2.2, dashed: bool = False) -> None:
    style = {"arrowstyle": "-|>,head_length=6,head_width=3", "shrinkA": 0, "shrinkB": 0, "zorder": 4}
    axes.add_patch(FancyArrowPatch(start, end, color=color, lw=width, ls=(0, (4, 3)) if dashed else "-", **style))


def write(axes: Axes, at: np.ndarray, text: str, color: str, dx: float = 0.0, dy: float = 0.0, **style: object) -> None:
    halo = [withStroke(linewidth=3, foreground="white", alpha=0.7)]
    look = {"fontsize": 12, "ha": "center", "va": "center", "zorder": 6, "path_effects": halo} | style
    axes.text(at[0] + dx, at[1] + dy, text, color=color, **look)


def draw_world(axes: Axes) -> None:
    world = Pose.identity()
    origin = on_page(world.t)
    for direction, name in zip(np.eye(3), "XYZ", strict=True):
        tip = on_page(world.apply(0.9 * direction))
        arrow(axes, origin, tip, INK)
        write(axes, tip + 0.14 * (tip - origin), name, INK)
    write(axes, origin, "world", INK, dx=-0.1, dy=-0.22, weight="bold", fontsize=13)


def draw_camera(axes: Axes) -> None:
    center, origin = in_camera(0, 0, 0), on_page(Pose.identity().t)
    corners_px = CAMERA.K.new_tensor([[0, 0], [CAMERA.width, 0], [CAMERA.width, CAMERA.height], [0, CAMERA.height]])
    corners = on_page(T_WORLD_CAM.apply(IMAGE_PLANE_Z * CAMERA.unproject(corners_px)))
    axes.add_patch(Polygon(corners, facecolor=PAPER, edgecolor=PALE, lw=1.3, alpha=0.8, zorder=1))
    for corner in corners:
        axes.plot(*np.stack([center, corner]).T, color=PALE, lw=1.0, zorder=1)
    write(axes, corners[0], "image", GREY, dx=0.3, dy=0.06, fontsize=11)
    axes.plot(*corners[0], "o", color=GREY, ms=4, zorder=3)

    arrow(axes, origin, center, INK, width=1.3, dashed=True)
    write(
        axes, (origin + center) / 2, "T_world_cam.t", INK, dx=0.28, dy=0.3, ha="right", fontsize=11, family="monospace"
    )

    right, down, forward = in_camera(0.9, 0, 0), in_camera(0, 0.9, 0), in_camera(0, 0, IMAGE_PLANE_Z)
    arrow(axes, center, right, RED)
    arrow(axes, center, down, GREEN)
    arrow(axes, center, forward, BLUE)
    write(axes, right, "+X right", RED, dx=-0.02, dy=-0.2)
    write(axes, down, "+Y down", GREEN, dy=-0.16)
    write(axes, forward, "+Z forward", BLUE, dx=-0.06, dy=0.15, ha="right")
    axes.plot(*center, "o", color=INK, ms=7, zorder=5)
    write(axes, center, "camera", INK, dx=-0.14, dy=0.14, ha="right", weight="bold", fontsize=13)


def draw_point(axes: Axes) -> None:
    x, y, z = POINT_CAM
    center, point, foot = in_camera(0, 0, 0), in_camera(x, y, z), in_camera(0, 0, z)
    hit = in_camera(*(POINT_CAM / z * IMAGE_PLANE_Z))
    axes.plot(*np.stack([center, point]).T, color=AMBER, lw=1.3, zorder=3)
    axes.plot(*np.stack([in_camera(0, 0, IMAGE_PLANE_Z), foot]).T, color=BLUE, lw=1.3, ls=(0, (2, 2)))
    axes.plot(*np.stack([foot, point]).T, color=PALE, lw=1.3, ls=(0, (2, 2)))
    axes.plot(*foot, "o", color=BLUE, ms=5, zorder=5)
    axes.plot(*hit, "o", color=AMBER, ms=5, zorder=5)
    axes.plot(*point, "o", color=AMBER, ms=9, zorder=5)
    write(axes, foot, "depth = z", BLUE, dx=0.1, dy=0.1, ha="left", fontsize=11)
    write(axes, point, "p_cam = (x, y, z)", AMBER, dy=-0.2, fontsize=11, family="monospace")
    write(axes, hit, "pixel (x, y)", AMBER, dx=-0.02, dy=-0.17, fontsize=11)


def draw_image(axes: Axes) -> None:
    width, height = CAMERA.width, CAMERA.height
    axes.add_patch(Rectangle((0, 0), width, height, facecolor=PAPER, edgecolor="none"))
    axes.vlines(range(1, width), 0, height, color="white", lw=2)
    axes.hlines(range(1, height), 0, width, color="white", lw=2)
    axes.add_patch(Rectangle((0, 0), width, height, facecolor="none", edgecolor=PALE, lw=1.3))
    centers = CAMERA.pixel_grid().reshape(-1, 2).numpy()
    axes.plot(*centers.T, "o", color=PALE, ms=3)

    corner = np.zeros(2)
    arrow(axes, corner, np.array([1.7, 0.0]), RED)
    arrow(axes, corner, np.array([0.0, 1.7]), GREEN)
    write(axes, np.array([1.95, -0.02]), "x", RED, dy=-0.22)
    write(axes, np.array([-0.25, 1.85]), "y", GREEN)

    notes = [
        (corner, "(0, 0)\ntop-left corner", (-0.2, -0.8)),
        (np.array([0.5, 0.5]), "(0.5, 0.5)\ncentre of the first pixel", (4.0, -0.8)),
        (np.array([width, height]), "(width, height) = (6, 4)\nbottom-right corner", (5.0, 4.8)),
        (np.array([CAMERA.cx, CAMERA.cy]), "(cx, cy)\nprincipal point", (1.5, 4.8)),
    ]
    for at, text, where in notes:
        axes.plot(*at, "o", color=INK, ms=6, zorder=5)
        line = {"arrowstyle": "-", "color": GREY, "lw": 0.9, "shrinkB": 4}
        axes.annotate(text, at, where, color=INK, fontsize=11, ha="center", va="center", arrowprops=line)
    axes.set_xlim(-1.4, 7.0)
    axes.set_ylim(5.3, -1.3)


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), width_ratios=[1.35, 1.0])
    draw_world(left)
    draw_camera(left)
    draw_point(left)
    draw_image(right)
    left.set_title("T_world_cam takes camera coordinates to world coordinates", fontsize=13, color=INK)
    right.set_title("Image coordinates, on an image of 6 x 4 pixels", fontsize=13, color=INK)
    left.margins(0.06)
    for axes in (left, right):
        axes.set_aspect("equal", anchor="N")
        axes.axis("off")
    figure.tight_layout(w_pad=2)
    # Without the version of matplotlib in the file, drawing again changes nothing where nothing changed.
    figure.savefig(Path(__file__).with_name("conventions.png"), dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
