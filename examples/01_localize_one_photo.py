"""Posed photos become a map, and a photo gets a pose in it.

Run it after `make demo`, which makes the room: `python examples/01_localize_one_photo.py`
"""

from pathlib import Path
from tempfile import mkdtemp

import relograph
from relograph.geometry import pose_error

scene = relograph.open_scene("demo/rooms/room-1")  # 7-Scenes, COLMAP, nerfstudio, ...: the format is recognised
place = relograph.Map.create(Path(mkdtemp()) / "room.map", scene.train)  # once; Map.open() from then on
localizer = relograph.Localizer(place)

query = scene.test[len(scene.test) // 2]
answer = localizer.localize(query.image.path, camera=query.camera)  # without a camera its focal length is searched
if answer.T_world_cam is None:
    print("not localized:", answer.reason)
else:
    print("centre in metres:", answer.T_world_cam.t.tolist())
    print("error:", pose_error(answer.T_world_cam, query.T_world_cam))
print(f"right with a chance of {answer.confidence:.0%}; {answer.num_inliers} matches agree")
for used in answer.references:
    print(f"  {used.name}: {used.num_inliers} of {used.num_matches} matches agree")
print({stage: f"{1000 * seconds:.0f} ms" for stage, seconds in answer.seconds.items()})
