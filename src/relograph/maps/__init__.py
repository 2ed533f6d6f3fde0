"""Maps: posed photos of a place as the network sees them, on disk, safe to change while others read (docs/maps.md)."""

from relograph.maps.map import Added, Map
from relograph.maps.records import ChangeRecord, Damage, MapFrame, MapSettings, VerifyReport
from relograph.maps.similarity import Similarity
from relograph.maps.sqlite_store import SqliteStore
from relograph.maps.store import Change, MapStore

__all__ = [
    "Added",
    "Change",
    "ChangeRecord",
    "Damage",
    "Map",
    "MapFrame",
    "MapSettings",
    "MapStore",
    "Similarity",
    "SqliteStore",
    "VerifyReport",
]
