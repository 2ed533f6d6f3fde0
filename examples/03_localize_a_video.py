"""The frames of a video, each with the last one's pose as its prior, then smoothed.

Run it after `make demo`, with a video of the place: `python examples/03_localize_a_video.py walk.mp4`
"""

import sys
from pathlib import Path
from tempfile import mkdtemp

import relograph
from relograph.localization.answer_files import PoseWording
from relograph.localization.localizing import CameraTold, localize_queries, write_answers
from relograph.localization.queries import open_queries

scene = relograph.open_scene("demo/rooms/room-1")
folder = Path(mkdtemp())
localizer = relograph.Localizer(relograph.Map.create(folder / "room.map", scene.train))

queries = open_queries([Path(sys.argv[1])], fps=5)  # folders of photos go the same way
answers = localize_queries(localizer, queries, CameraTold(camera=scene.train[0].camera))
raw, smoothed = write_answers(answers, folder / "walk.tum", "tum", PoseWording(axes="ros"))
print(f"{raw.num_localized} of {raw.num_queries} frames localized", raw.first_refused)
print(sorted(path.name for path in folder.glob("*.tum")))
