"""A query may be a file, its bytes, an array or a PIL image; many go in a batch, and what is known beforehand helps.

Run it after `make demo`: `python examples/02_photos_of_every_kind.py`
"""

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from PIL import Image

import relograph

scene = relograph.open_scene("demo/rooms/room-1")
localizer = relograph.Localizer(relograph.Map.create(Path(mkdtemp()) / "room.map", scene.train))
path, camera = scene.test[0].image.path, scene.test[0].camera

kinds = {"file": path, "bytes": path.read_bytes(), "array": np.array(Image.open(path)), "PIL": Image.open(path)}
for kind, image in kinds.items():
    print(kind, localizer.localize(image, camera=camera).confidence)

frames = scene.test.frames[:3]
batch = localizer.localize_batch([frame.image.path for frame in frames], cameras=[frame.camera for frame in frames])
print("batch", [answer.localized for answer in batch])

# About where it was taken: photos near there are looked at too, and the solver begins there. It may be wrong.
prior = relograph.Prior(scene.train[0].T_world_cam, looks=True, radius_m=2.0)
print("prior", localizer.localize(path, camera=camera, prior=prior).references[-1].name)

# What is no photo is refused with a reason, and nothing is raised.
print("refused:", localizer.localize(b"no photo").reason)
