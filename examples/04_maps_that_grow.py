"""Maps are added to, split, merged, checked and handed on; a Localizer sees each change at once.

Run it after `make demo`: `python examples/04_maps_that_grow.py`
"""

from pathlib import Path
from tempfile import mkdtemp

import relograph
from relograph.maps import Similarity
from relograph.maps.exporting import export_map

scene = relograph.open_scene("demo/rooms/room-1")
folder = Path(mkdtemp())

place = relograph.Map.create(folder / "room.map", scene.train.frames[:3])
localizer = relograph.Localizer(place)
place.add(scene.train.frames[3:])  # the work of the new photos only
names = [used.name for used in localizer.localize(scene.train[3].image.path).references]
print("found at once:", scene.train[3].name in names)

place.remove([scene.train[0].name])
corner = place.split(folder / "corner.map", [scene.train[1].name])
place.remove([scene.train[1].name])

# Two maps of one world, or of two worlds of which one lies so in the other: scale, rotation, translation.
place.merge(corner, Similarity.identity(), prefix="corner/")
print("merged:", len(place), "photos, such as", place.frames[-1].name)

print("whole:", place.verify().is_whole)
print("exported:", len(export_map(place, folder / "colmap", to="colmap")), "photos for other programs")
