"""Rooms, the embedded world: procedural homes, photographed with exact poses and depth."""

from relograph.rooms.covisibility import covisibility
from relograph.rooms.more_walks import MoreViews, render_more_walks
from relograph.rooms.pictures import draw_scene_from_above, write_preview
from relograph.rooms.seven_rooms import create_seven_rooms
from relograph.rooms.stream import RoomStream, StreamBatch, StreamConfig

__all__ = [
    "MoreViews",
    "RoomStream",
    "StreamBatch",
    "StreamConfig",
    "covisibility",
    "create_seven_rooms",
    "draw_scene_from_above",
    "render_more_walks",
    "write_preview",
]
