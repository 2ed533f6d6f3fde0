"""The viewer in a browser, by viser: frusta in 3-D, photos on them, a slider along the sequence, switches by group.

All cameras of a group are one object of lines, so that ten thousands of them can be turned. Photos lie on all frusta
of a small map, and of a large one on those near the slider and on the one that was clicked.
"""

import html
import io
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from relograph.errors import ConfigError, DatasetError, MissingExtraError
from relograph.viewer.cameras_page import CameraGroup, small_photo, up_of
from relograph.viewer.shown import Shown

if TYPE_CHECKING:
    import viser

LOOPBACK, PORT = "127.0.0.1", 8080
PHOTOS_ON_ALL = 300
"""Photos that lie on their frusta at once; of more, those near the slider."""
PHOTOS_NEAR = 6
"""To each side of the slider."""
CLICK_WITHIN = 0.03
"""How far from a camera's centre a click may be, as a share of the distance to it."""
HALF_HEIGHT, HALF_WIDTH = 0.45, 0.6
"""Of a frustum one metre deep, as in the page."""
CORNERS = np.array([[0, 0, 0], [-0.6, -0.45, 1], [0.6, -0.45, 1], [0.6, 0.45, 1], [-0.6, 0.45, 1], [0, -0.75, 1]])
EDGES = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1], [1, 5], [5, 2]])
FEW_EDGES, MANY = np.array([[0, 1], [0, 2], [1, 2]]), 2000
"""Of a group of many cameras each is drawn as a triangle, as in the page: where it is and where it looks."""
FIELD_OF_VIEW = np.radians(50)
MARGIN, CLOSEST_M = 1.1, 1.0
"""Of the first view: how much farther than need be, and how near to the nearest camera."""
INK, GREY = (32, 36, 42), (110, 116, 124)
Camera = tuple[int, int]
"""A group's number and a row in it."""


class LiveView:
    """A viewer that is being served; `stop` ends it."""

    def __init__(self, shown: Shown, host: str = LOOPBACK, port: int = PORT) -> None:
        self.shown = shown
        self._poses = [group.T_world_cam.detach().to("cpu", torch.float64) for group in shown.groups]
        self._centers = [T.t.numpy() for T in self._poses]
        self._server = _serve(host, port)
        self.url = f"http://{host}:{self._server.get_port()}"
        self._one_at_a_time = threading.Lock()
        """viser calls back from several threads."""
        self._photo_nodes: dict[Camera, viser.CameraFrustumHandle] = {}
        self._here: list[viser.SceneNodeHandle] = []
        with_photos = self._cameras_with_photos()
        self.shows_all_photos = len(with_photos) <= PHOTOS_ON_ALL
        self._add_cameras()
        self._add_panel()
        if self.shows_all_photos:
            self._lay_photos(with_photos)
        self._step(0)

    def stop(self) -> None:
        """Closes the connections and the port."""
        with redirect_stdout(io.StringIO()):  # viser says goodbye
            self._server.stop()

    # The scene

    def _add_cameras(self) -> None:
        scene = self._server.scene
        up = up_of(self._poses)
        scene.set_up_direction(tuple(up.tolist()))
        self._first_view(up)
        self._group_nodes = [
            scene.add_line_segments(
                f"/group-{number}",
                frustum_lines(group, self._centers[number], self._poses[number].R.numpy()),
                _rgb(group.color),
                thickness=1.5,
                thickness_units="screen",
            )
            for number, group in enumerate(self.shown.groups)
        ]
        self._line_nodes = []
        for number, (a, b) in enumerate(self.shown.lines):
            ends = np.stack([self._centers[a], self._centers[b]], axis=1)
            ends = ends[np.isfinite(ends).all(axis=(1, 2))]
            node = scene.add_line_segments(f"/line-{number}", ends, GREY, thickness=1.0, thickness_units="screen")
            self._line_nodes.append((a, b, node))

        @scene.on_click()
        def _(event: "viser.SceneClickEvent") -> None:
            origin, direction = np.asarray(event.ray_origin), np.asarray(event.ray_direction)
            found = nearest_to_ray(origin, direction, self._centers, self._shown_groups())
            if found is not None:
                self._tell_camera(found)

    def _first_view(self, up: Float64[np.ndarray, "3"]) -> None:
        """All cameras of the map from above and aside, and others that are not far off: one wild answer must not make
        all of them small.
        """
        walked = () if self.shown.slider is None else self.shown.slider.groups
        corners = [
            frustum_lines(group, self._centers[number], self._poses[number].R.numpy()).reshape(-1, 3)
            for number, group in enumerate(self.shown.groups)
        ]
        of_map = np.concatenate([np.zeros((0, 3)), *(c for number, c in enumerate(corners) if number not in walked)])
        everyone = np.concatenate([np.zeros((0, 3)), *corners])
        if not len(everyone):
            return
        known = of_map if len(of_map) else everyone
        middle = (known.min(axis=0) + known.max(axis=0)) / 2
        reach = 2 * np.linalg.norm(known - middle, axis=1).max()
        framed = np.concatenate([known, everyone[np.linalg.norm(everyone - middle, axis=1) < reach]])
        side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
        look_at, position = framing_view(framed, 1.1 * side / np.linalg.norm(side) + 0.9 * up, up)
        camera = self._server.initial_camera
        camera.fov = FIELD_OF_VIEW
        camera.look_at, camera.position = tuple(look_at.tolist()), tuple(position.tolist())
        camera.far = max(camera.far, 10 * float(np.linalg.norm(position - look_at)))

    def _shown_groups(self) -> list[int]:
        return [number for number, node in enumerate(self._group_nodes) if node.visible]

    def _cameras_with_photos(self) -> list[Camera]:
        return [
            (number, row)
            for number, group in enumerate(self.shown.groups)
            for row, frame in enumerate(group.frames or ())
            if frame is not None and np.isfinite(self._centers[number][row]).all()
        ]

    def _lay_photos(self, cameras: Iterable[Camera]) -> None:
        """Photos on these frusta, and on no others."""
        wanted = dict.fromkeys(cameras)
        for camera in [camera for camera in self._photo_nodes if camera not in wanted]:
            self._photo_nodes.pop(camera).remove()
        for number, row in wanted:
            pixels = None if (number, row) in self._photo_nodes else self._photo(number, row)
            if pixels is None:
                continue
            group, T_world_cam = self.shown.groups[number], self._poses[number][row]
            aspect = pixels.shape[1] / pixels.shape[0]
            node = self._server.scene.add_camera_frustum(
                f"/photo-{number}-{row}",
                fov=2 * np.arctan(HALF_HEIGHT),
                aspect=aspect,
                thickness=2.0,
                thickness_units="screen",
                color=_rgb(group.color),
                image=pixels,
                format="jpeg",
                cast_shadow=False,
                wxyz=tuple(T_world_cam.quat_wxyz().tolist()),
                position=tuple(T_world_cam.t.tolist()),
                visible=self._group_nodes[number].visible,
            )
            node.scale = group.size_m / node.compute_canonical_frustum_size()[2]
            self._photo_nodes[number, row] = node

    def _photo(self, number: int, row: int) -> UInt8[np.ndarray, "H W 3"] | None:
        frames = self.shown.groups[number].frames
        frame = None if frames is None else frames[row]
        if frame is None:
            return None
        try:
            return np.asarray(small_photo(frame))
        except DatasetError:
            return None  # removed or damaged since; the camera is still where it is

    # The panel

    def _add_panel(self) -> None:
        gui, slider = self._server.gui, self.shown.slider
        gui.configure_theme(show_logo=False, show_share_button=False, control_width="large")
        gui.main_panel.dock_right()  # beside the view: over it, the panel would hide cameras
        gui.set_panel_label(f"relograph: {self.shown.title}")
        gui.add_html(_paragraphs(self.shown.note))
        self._slider = None
        if slider is not None and slider.captions:
            count = len(slider.captions)
            self._slider = gui.add_slider(slider.label, 1, max(count, 2), 1, 1, disabled=count < 2)
            self._slider.on_update(lambda event: self._step(event.target.value - 1))
        self._told = gui.add_html("")
        self._photo_shown = gui.add_image(np.zeros((3, 4, 3), dtype=np.uint8), visible=False)
        with gui.add_folder("Cameras"):
            for number, group in enumerate(self.shown.groups):
                count = int(np.isfinite(self._centers[number]).all(axis=1).sum())
                gui.add_html(f'<div style="height: 4px; margin: 0 1em; background: {html.escape(group.color)}"></div>')
                switch = gui.add_checkbox(f"{group.name} ({count:,})", True)
                switch.on_update(partial(self._switch, number))
        gui.add_html(_paragraphs(self._advice()))

    def _advice(self) -> str:
        lines = ["Drag to turn, wheel to come closer, right button to move; click a camera to see its photo."]
        if not self.shows_all_photos:
            lines.append("Photos lie on the frusta near the slider, and on the one that was clicked.")
        if any(len(centers) > MANY for centers in self._centers):
            lines.append(f"Of groups of more than {MANY:,} cameras each is drawn as a triangle.")
        return "\n".join(lines)

    def _switch(self, number: int, event: "viser.GuiEvent[viser.GuiCheckboxHandle]") -> None:
        """Shows a group, or does not."""
        with self._one_at_a_time, self._server.atomic():
            self._group_nodes[number].visible = event.target.value
            for a, b, node in self._line_nodes:
                node.visible = self._group_nodes[a].visible and self._group_nodes[b].visible
            for (group, _), photo in self._photo_nodes.items():
                photo.visible = self._group_nodes[group].visible
        if self._slider is not None:
            self._step(self._slider.value - 1)  # what is marked may belong to it

    def _step(self, step: int) -> None:
        """Goes to a step along the slider, which counts them from 1."""
        slider = self.shown.slider
        if slider is None or not slider.captions:
            return
        step = min(step, len(slider.captions) - 1)  # a slider of one step has two ends
        with self._one_at_a_time, self._server.atomic():
            if self._slider is not None and step != min(self._slider.value, len(slider.captions)) - 1:
                return  # the slider has moved on meanwhile
            here = [(number, step) for number in slider.groups if self._is_there((number, step))]
            relatives = slider.related_group
            related = [] if relatives is None else [(relatives, row) for row in slider.related[step]]
            if not self.shows_all_photos:
                around = range(max(0, step - PHOTOS_NEAR), min(len(slider.captions), step + PHOTOS_NEAR + 1))
                near = [(number, row) for row in around for number in slider.groups if self._is_there((number, row))]
                self._lay_photos([*near, *related])
            self._mark(here, related, slider.captions[step])
            self._tell(slider.captions[step], [(number, step) for number in slider.groups])  # also where it is nowhere

    def _tell_camera(self, camera: Camera) -> None:
        """Shows a camera that was clicked; one of the slider's moves the slider there."""
        number, row = camera
        slider = self.shown.slider
        if self._slider is not None and slider is not None and number in slider.groups:
            if self._slider.value == row + 1:
                self._step(row)
            self._slider.value = row + 1  # type: ignore[misc]  # it has a setter, apart from its getter
            return
        caption = self.shown.groups[number].captions[row]
        with self._one_at_a_time, self._server.atomic():
            self._lay_photos([*self._photo_nodes, camera])
            self._mark([camera], [], caption)
            self._tell(caption, [camera])

    def _is_there(self, camera: Camera) -> bool:
        return bool(np.isfinite(self._centers[camera[0]][camera[1]]).all())

    def _mark(self, here: Sequence[Camera], related: Sequence[Camera], caption: str) -> None:
        """Draws cameras in broad lines, named, and joined with those that they are related to."""
        for node in self._here:
            node.remove()
        scene, self._here = self._server.scene, []
        here, related = (
            [camera for camera in cameras if self._group_nodes[camera[0]].visible] for cameras in (here, related)
        )
        for kind, cameras in (("here", here), ("related", related)):
            for number, row in cameras:
                group, T = self.shown.groups[number], self._poses[number]
                lines = frustum_lines(group, T.t.numpy()[row : row + 1], T.R.numpy()[row : row + 1])
                name = f"/{kind}-{number}-{row}"
                strokes = [(7.0, INK), (3.0, _rgb(group.color))] if kind == "here" else [(3.0, _rgb(group.color))]
                for thickness, color in strokes:
                    self._here.append(
                        scene.add_line_segments(
                            f"{name}-{thickness:g}", lines, color, thickness=thickness, thickness_units="screen"
                        )
                    )
        if here:
            number, row = here[0]
            center = self._centers[number][row]
            self._here.append(scene.add_label("/name", caption, position=tuple(center.tolist())))
            ends = [[center, self._centers[group][of]] for group, of in related]
            if ends:
                lines = np.array(ends)
                self._here.append(
                    scene.add_line_segments("/to-related", lines, GREY, thickness=1.0, thickness_units="screen")
                )

    def _tell(self, caption: str, cameras: Sequence[Camera]) -> None:
        self._told.content = _paragraphs(caption)
        photo = next((pixels for camera in cameras if (pixels := self._photo(*camera)) is not None), None)
        self._photo_shown.visible = photo is not None
        if photo is not None:
            self._photo_shown.image = photo


def framing_view(
    points: Float64[np.ndarray, "N 3"], direction: Float64[np.ndarray, "3"], up: Float64[np.ndarray, "3"]
) -> tuple[Float64[np.ndarray, "3"], Float64[np.ndarray, "3"]]:
    """Where to look and from where, so that the points fill a square view from that direction and lie in its middle."""
    back = direction / np.linalg.norm(direction)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(back, right), back])  # [3, 3]
    across, z = axes[:2] @ points.T, axes[2] @ points.T
    # From a distance d a point is within the view, whose middle is at m, where |across - m| <= (d - z) tangent.
    tangent = np.tan(FIELD_OF_VIEW / 2)
    sums = (z * tangent + across).max(axis=1) + (z * tangent - across).max(axis=1)
    nearest = float(sums.max() / 2 / tangent)
    distance = z.max() + max(MARGIN * (nearest - z.max()), CLOSEST_M)
    low, high = across.min(axis=1), across.max(axis=1)
    for _ in range(50):  # nearer points are seen farther out, so the middle is found by halving
        middle = (low + high) / 2
        seen = (across - middle[:, None]) / (distance - z)
        is_beyond = seen.min(axis=1) + seen.max(axis=1) > 0
        low, high = np.where(is_beyond, middle, low), np.where(is_beyond, high, middle)
    return axes.T @ np.array([*low, z.mean()]), axes.T @ np.array([*low, distance])


def frustum_lines(
    group: CameraGroup, centers: Float64[np.ndarray, "M 3"], R: Float64[np.ndarray, "M 3 3"]
) -> Float64[np.ndarray, "L 2 3"]:
    """The edges of all frusta of a group, of those that have a place; of many a few edges each."""
    there = np.isfinite(centers).all(axis=1)
    edges = FEW_EDGES if len(centers) > MANY else EDGES
    corners = np.einsum("mij,cj->mci", R[there], group.size_m * CORNERS) + centers[there, None]  # [m, 6, 3]
    return np.asarray(corners[:, edges].reshape(-1, 2, 3))


def nearest_to_ray(
    origin: Float64[np.ndarray, "3"],
    direction: Float64[np.ndarray, "3"],
    centers: Sequence[Float64[np.ndarray, "_ 3"]],
    groups: Iterable[int],
) -> Camera | None:
    """The camera of these groups that a ray passes nearest to, by angle; None where it passes all of them far off."""
    best, nearest = None, CLICK_WITHIN
    for number in groups:
        away = centers[number] - origin
        along = away @ direction
        beside = np.linalg.norm(away - along[:, None] * direction, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(along > 0, beside / along, np.inf)
        share = np.where(np.isfinite(share), share, np.inf)
        if len(share) and share.min() < nearest:
            best, nearest = (number, int(share.argmin())), float(share.min())
    return best


def _serve(host: str, port: int) -> "viser.ViserServer":
    try:
        import viser
    except ImportError:
        raise MissingExtraError("viser", "viewer", "The viewer") from None
    try:
        # viser would try a thousand ports of an address that is not this machine's.
        with socket.create_server((host, 0)):
            pass
    except OSError as error:
        raise ConfigError(
            f"--host {host}: expected an address of this machine, found: {error.strerror or error}. Use {LOOPBACK}."
        ) from None
    with redirect_stdout(io.StringIO()):  # viser prints a box; who calls us says where to look
        server = viser.ViserServer(host, port, verbose=False)
    # The client's button would open a tunnel through a server of others; it is not shown, and asking does nothing.
    server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]  # on this object alone
    return server


def _rgb(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _paragraphs(text: str) -> str:
    """Lines of text as HTML: names are from outside."""
    lines = "".join(f"<div>{html.escape(line)}</div>" for line in text.splitlines())
    return f'<div style="padding: 0.3em 1em; font-size: 0.85em; overflow-wrap: anywhere">{lines}</div>'
