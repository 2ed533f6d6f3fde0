"""Draws the pictures of docs/concepts.md: one photo's way to its pose in the demo's room, as it really went.

Run it after `make demo`, which makes the room: python docs/pictures/draw_concepts.py
"""

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from PIL import Image, ImageColor

from relograph import Localizer, Map, Pose, Scene, open_scene
from relograph.evaluation.qualitative import ANSWER_COLOR, MAP_COLOR, TRUE_COLOR
from relograph.geometry import pose_error
from relograph.localization.localizer import CANDIDATES_PER_REFERENCE, Compared, Judged, judge
from relograph.localization.map_features import MapFeatures
from relograph.localization.photos import read_query
from relograph.maps.records import MapFrame
from relograph.rooms.pictures import ground_axes
from relograph.scenes import Frame
from relograph.viewer.answers import REFUSED_COLOR

INK, EDGE_COLOR = "#22262b", "#b36b00"
MAP_PHOTOS, QUERIES, QUERY = 100, 25, 6
"""Photos and queries as in the demo; which of these is followed."""
LINES = 60


@dataclass(frozen=True)
class Followed:
    """A query, and all that led to its answer."""

    frame: Frame
    compared: Compared
    judged: Judged


@dataclass(frozen=True)
class Ground:
    """The floor of the room as the page, right and ahead."""

    to_page: np.ndarray
    """[3, 2]"""

    def draw(self, axes: Axes, T_world_cam: Pose, color: str, length_m: float = 0.22, **style: object) -> None:
        """Cameras as dots with a stroke to where they look."""
        centers = T_world_cam.t.reshape(-1, 3).numpy() @ self.to_page
        ahead = T_world_cam.R.reshape(-1, 3, 3).numpy()[:, :, 2] @ self.to_page
        label = style.pop("label", None)
        axes.add_collection(
            LineCollection(list(zip(centers, centers + length_m * ahead, strict=True)), colors=color, **style)
        )
        axes.scatter(*centers.T, s=16, color=color, label=label, **{"zorder": 3} | style)

    def frame(self, axes: Axes, title: str) -> None:
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
        axes.set_xlabel("metres to the right")
        axes.set_ylabel("metres ahead")
        axes.set_title(title, fontsize=11)


def show_photo(axes: Axes, pixels: np.ndarray, title: str = "", color: str = INK) -> None:
    axes.imshow(pixels)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=9, color=color)
    for spine in axes.spines.values():
        spine.set(color=color, linewidth=2)


def legend_below(axes: Axes, columns: int) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns, frameon=False, fontsize=9)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})
    plt.close(figure)
    with Image.open(path) as drawn:  # 256 colours are enough, and a third of the bytes
        pixels = drawn.convert("RGB")
    # Ours are among them: else a thin line gets the colour of something large.
    ours = ("white", INK, EDGE_COLOR, ANSWER_COLOR, MAP_COLOR, TRUE_COLOR, REFUSED_COLOR)
    colors = [ImageColor.getrgb(color) for color in ours]
    palette = Image.new("P", (1, 1))
    found = pixels.quantize(256 - len(colors)).getpalette() or []
    palette.putpalette([*(value for color in colors for value in color), *found[: 3 * (256 - len(colors))]])
    few = pixels.quantize(palette=palette, dither=Image.Dither.NONE)
    for number, color in enumerate(colors):  # Pillow takes one that is only near
        is_it = (np.asarray(pixels) == color).all(axis=-1)
        few.paste(number, mask=Image.fromarray(is_it))
    few.save(path, optimize=True)


def small_photo(place: Map, frame: MapFrame) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(place.jpeg(frame))).convert("RGB"))


def features_as_colors(features: torch.Tensor) -> np.ndarray:
    """The three directions in which cells differ most, as red, green and blue: [M, C, h, w] to [M, h, w, 3]."""
    num, channels, height, width = features.shape
    cells = features.permute(0, 2, 3, 1).reshape(-1, channels)
    cells = cells - cells.mean(0)
    strongest = torch.linalg.svd(cells[::7], full_matrices=False).Vh[:3]
    colors = cells @ strongest.T
    low, high = colors.quantile(0.02, dim=0), colors.quantile(0.98, dim=0)
    return ((colors - low) / (high - low)).clamp(0, 1).reshape(num, height, width, 3).numpy()


def telling_rows(place: Map, count: int) -> list[int]:
    """Of each part of the map the photo with the most contrast."""
    contrast = [small_photo(place, frame).std() for frame in place.frames]
    return [int(max(part, key=contrast.__getitem__)) for part in np.array_split(np.arange(len(place)), count)]


def draw_map(place: Map, ground: Ground, path: Path) -> None:
    rows = telling_rows(place, 3)
    frames = [place.frames[row] for row in rows]
    ((_, _, kept),) = place.features.take(rows, torch.device("cpu"))
    colors = features_as_colors(kept.coarse.float())
    figure = plt.figure(figsize=(11, 5.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.25, 1])
    left.suptitle("What is kept of a photo")
    grid = left.subplots(3, 3, gridspec_kw={"width_ratios": [1, 1, 0.8]})
    for number, (frame, painted) in enumerate(zip(frames, colors, strict=True)):
        show_photo(grid[number, 0], small_photo(place, frame), "" if number else "a small JPEG", INK)
        show_photo(grid[number, 1], painted, "" if number else "dense features, as colours")
        descriptor = place.shards([frame])[frame.shard].descriptors[frame.shard_row].float().numpy()
        side = int(np.ceil(np.sqrt(descriptor.size)))
        square = np.pad(descriptor, (0, side * side - descriptor.size)).reshape(side, side)
        show_photo(grid[number, 2], plt.get_cmap("RdBu")(square / np.abs(square).max() / 1.2 + 0.5)[..., :3])
        grid[number, 2].set_title("" if number else f"a descriptor ({descriptor.size} numbers)", fontsize=9)
        grid[number, 0].set_ylabel("ABC"[number], rotation=0, fontsize=12, labelpad=10, va="center")
    right.suptitle("and where it was taken")
    axes = right.subplots()
    ground.draw(axes, place.features.T_world_cam, MAP_COLOR)
    for letter, frame in zip("ABC", frames, strict=True):
        ground.draw(axes, frame.T_world_cam, ANSWER_COLOR, zorder=4)
        at = frame.T_world_cam.t.numpy() @ ground.to_page
        axes.annotate(letter, at, (7, 7), textcoords="offset points", weight="bold", color=ANSWER_COLOR)
    ground.frame(axes, f"{len(place)} photos of one room, from above")
    save(figure, path)


def draw_references(place: Map, ground: Ground, followed: Followed, alike: list[int], path: Path) -> None:
    compared = followed.compared
    figure = plt.figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.25, 1])
    grid = left.subplots(3, 3).ravel()
    show_photo(grid[0], followed.frame.read_image(), "the query", REFUSED_COLOR)
    for number, row in enumerate(compared.rows):
        title = f"{number + 1}: similarity {float(compared.similarity[number]):.2f}"
        show_photo(grid[number + 1], small_photo(place, place.frames[row]), title, ANSWER_COLOR)
    for unused in grid[len(compared.rows) + 1 :]:
        unused.axis("off")
    axes = right.subplots()
    T_world_map = place.features.T_world_cam
    ground.draw(axes, T_world_map, MAP_COLOR, label="the map", alpha=0.45)
    ground.draw(axes, T_world_map[alike], EDGE_COLOR, label=f"the {len(alike)} most similar")
    ground.draw(axes, compared.T_world_ref, ANSWER_COLOR, label=f"the {len(compared.rows)} that are used", zorder=5)
    for number, center in enumerate(compared.T_world_ref.t.numpy() @ ground.to_page):
        axes.annotate(str(number + 1), center, (5, 5), textcoords="offset points", color=ANSWER_COLOR, weight="bold")
    legend_below(axes, 3)
    ground.frame(axes, "similar, and spread out")
    save(figure, path)


def draw_graph(ground: Ground, followed: Followed, path: Path) -> None:
    compared, answer = followed.compared, followed.judged.answer
    figure, (nodes, poses) = plt.subplots(1, 2, figsize=(11, 5.6), layout="constrained")
    refs = compared.T_world_ref.t.numpy() @ ground.to_page
    query = compared.T_regressed.t.numpy() @ ground.to_page
    between = [(a, b) for i, a in enumerate(refs) for b in refs[:i]]
    nodes.add_collection(LineCollection(between, colors=MAP_COLOR, linewidths=0.6, alpha=0.7))
    seen = torch.sigmoid(compared.overlap).numpy()
    nodes.add_collection(LineCollection([(query, ref) for ref in refs], colors=EDGE_COLOR, linewidths=0.6 + 4 * seen))
    ground.draw(nodes, compared.T_world_ref, ANSWER_COLOR, label="references, poses known", zorder=4)
    ground.draw(nodes, compared.T_regressed, REFUSED_COLOR, label="the query", zorder=5)
    legend_below(nodes, 2)
    ground.frame(nodes, "edges to the query: the wider, the more of it\na reference is believed to see")
    ground.draw(poses, compared.T_world_edges, EDGE_COLOR, 0.04, label="what each edge says", alpha=0.8)
    ground.draw(poses, compared.T_regressed, REFUSED_COLOR, 0.04, label="the network, all edges together", zorder=4)
    if answer.T_solved is not None:
        ground.draw(poses, answer.T_solved, ANSWER_COLOR, 0.04, label="the solver, all matches together", zorder=5)
    ground.draw(poses, followed.frame.T_world_cam, TRUE_COLOR, 0.04, label="the truth", zorder=3)
    legend_below(poses, 2)
    ground.frame(poses, "the query's pose, from near")
    save(figure, path)


def draw_matches(place: Map, followed: Followed, path: Path) -> None:
    compared, judged = followed.compared, followed.judged
    used = judged.answer.references
    best = max(range(len(used)), key=lambda ref: used[ref].num_inliers)
    query = read_query(followed.frame.read_image()).pixels
    reference = small_photo(place, place.frames[compared.rows[best]])
    rows = np.flatnonzero(np.asarray(judged.points.ref_idx) == best)
    rows = rows[np.linspace(0, len(rows) - 1, min(LINES, len(rows))).astype(int)]
    assert judged.solved is not None
    agrees = judged.solved.inlier_mask.numpy()[rows]
    gap = 12
    page = np.full(
        (max(query.shape[0], reference.shape[0]), query.shape[1] + gap + reference.shape[1], 3), 255, np.uint8
    )
    page[: query.shape[0], : query.shape[1]] = query
    page[: reference.shape[0], query.shape[1] + gap :] = reference
    start = np.asarray(judged.points.query_xy)[rows]
    end = np.asarray(judged.points.ref_xy)[rows] + [query.shape[1] + gap, 0]
    figure, axes = plt.subplots(figsize=(11, 4.6), layout="constrained")
    axes.imshow(page)
    axes.axis("off")
    for color, some, label in (
        (REFUSED_COLOR, ~agrees, "matches that do not agree with the pose"),
        (ANSWER_COLOR, agrees, "matches that agree"),
    ):
        lines = list(zip(start[some], end[some], strict=True))
        axes.add_collection(LineCollection(lines, colors=color, linewidths=0.9, label=label))
        axes.scatter(*np.concatenate([start[some], end[some]]).T, s=7, color=color)
    agreeing = f"{used[best].num_inliers} of {used[best].num_matches} matches agree, {len(rows)} are drawn"
    axes.set_title(f"the query and reference {best + 1}: {agreeing}", fontsize=11)
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=9)
    for line in legend.get_lines():
        line.set_linewidth(2.5)  # a thin line's colour is hardly seen
    save(figure, path)


def draw_pose(ground: Ground, followed: Followed, path: Path) -> None:
    """The solved pose with its covariance, from so near that millimetres are seen."""
    answer, T_true = followed.judged.answer, followed.frame.T_world_cam
    assert answer.T_world_cam is not None
    figure, axes = plt.subplots(figsize=(7, 5.4), layout="constrained")
    center = answer.T_world_cam.t.numpy() @ ground.to_page
    covariance = ground.to_page.T @ answer.covariance[3:, 3:].numpy() @ ground.to_page
    values, vectors = np.linalg.eigh(covariance)
    for sigmas in (1, 2, 3):
        width, height = 2 * sigmas * np.sqrt(values[::-1]) * 1000
        angle = np.degrees(np.arctan2(*vectors[::-1, 1]))
        axes.add_patch(Ellipse((0, 0), width, height, angle=angle, color=ANSWER_COLOR, alpha=0.16, lw=0))
    truth = (T_true.t.numpy() @ ground.to_page - center) * 1000
    axes.scatter(0, 0, color=ANSWER_COLOR, s=30, label="the answer with 1, 2 and 3 standard deviations")
    axes.scatter(*truth, color=TRUE_COLOR, s=30, label="the truth")
    error = pose_error(answer.T_world_cam, T_true)
    axes.set_title(
        f"{1000 * float(error.translation_error_m):.1f} mm and {float(error.rotation_error_deg):.2f}° from the truth",
        fontsize=11,
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.2)
    axes.grid(color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.set_xlabel("millimetres to the right")
    axes.set_ylabel("millimetres ahead")
    legend_below(axes, 2)
    save(figure, path)


def draw_confidence(of_place: Followed, of_none: Followed, path: Path) -> None:
    """The log odds of an answer and of a refusal, term by term."""
    figure, both = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharex=True)
    for axes, followed in zip(both, (of_place, of_none), strict=True):
        answer, odds = followed.judged.answer, followed.judged.odds
        terms = [("at the outset", odds.bias)]
        terms += [
            (name.replace("_", " "), weight * answer.signs[name])
            for name, weight in odds.weight_by_sign.items()
            if weight * answer.signs.get(name, 0.0) != 0.0
        ]
        at = 0.0
        for row, (_, value) in enumerate(terms):
            axes.barh(row, value, left=at, color=ANSWER_COLOR if value > 0 else REFUSED_COLOR)
            at += value
        asked = np.log(odds.threshold / (1 - odds.threshold))
        axes.axvline(asked, color=INK, lw=1, ls="--", label=f"asked for: {odds.threshold:.0%}")
        axes.plot(
            [at, at], [-0.5, len(terms) - 0.5], color=TRUE_COLOR, lw=2, label=f"in the end: {answer.confidence:.0%}"
        )
        axes.set_yticks(range(len(terms)), [name for name, _ in terms], fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="x", color="#e6e6e6")
        axes.set_axisbelow(True)
        axes.set_xlabel("log odds that the pose is right")
        axes.set_title("localized" if answer.localized else "refused", fontsize=11)
        axes.use_sticky_edges = False  # bars would begin at the very rim
        axes.margins(0.05)
        legend_below(axes, 2)
    save(figure, path)


def follow(localizer: Localizer, frame: Frame, *, mirrored: bool = False) -> Followed:
    photo = frame.read_image()
    compared = localizer.compare(photo[:, ::-1] if mirrored else photo, camera=frame.camera)
    assert isinstance(compared, Compared)
    return Followed(frame, compared, judge(compared, localizer.solver, localizer.calibration))


def evenly(frames: Scene, count: int) -> list[Frame]:
    return [frames[int(row)] for row in np.linspace(0, len(frames) - 1, min(count, len(frames)))]


def draw_concepts(scene: Scene, folder: Path, num_map: int = MAP_PHOTOS, num_queries: int = QUERIES) -> None:
    with TemporaryDirectory() as temporary:
        place = Map.create(Path(temporary) / "room.map", evenly(scene.train, num_map))
        localizer = Localizer(place)
        frames = evenly(scene.test, num_queries)
        query, of_none = (
            follow(localizer, frames[min(QUERY, len(frames) - 1)], mirrored=mirrored) for mirrored in (False, True)
        )
        ground = Ground(np.stack(ground_axes(place.features.T_world_cam), axis=1))
        (descriptor,) = MapFeatures.of([query.frame], place.network).descriptors
        alike, _ = place.features.nearest(descriptor.float(), CANDIDATES_PER_REFERENCE * localizer.num_references)
        draw_map(place, ground, folder / "concept-map.png")
        draw_references(place, ground, query, alike, folder / "concept-references.png")
        draw_graph(ground, query, folder / "concept-graph.png")
        draw_matches(place, query, folder / "concept-matches.png")
        draw_pose(ground, query, folder / "concept-pose.png")
        draw_confidence(query, of_none, folder / "concept-confidence.png")


if __name__ == "__main__":
    room = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo/rooms/room-1")
    draw_concepts(open_scene(room), Path(__file__).parent)
