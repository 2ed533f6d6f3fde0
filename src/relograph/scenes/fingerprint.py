"""Which data a number was made with."""

import hashlib
import json

from relograph.scenes.scene import Scene


def scene_fingerprint(scene: Scene) -> str:
    """A hash in hex of the frames' names, splits, poses and photo sizes in bytes, in the order of the frames.

    It is the same wherever the scene lies and whatever its folder is called. No photo is read, so ten thousand frames
    take a moment, and a photo that changed without changing its size goes unseen.
    """
    photos = [(frame.name, frame.split, frame.image.size_bytes()) for frame in scene]
    digest = hashlib.sha256(json.dumps(photos).encode())
    digest.update(scene.T_world_cam.matrix().contiguous().numpy().astype("<f8").tobytes())
    return digest.hexdigest()
