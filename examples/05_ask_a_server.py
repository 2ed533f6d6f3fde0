"""A photo is localized by a service, from a program that has neither torch nor the map.

Run it after `make demo`, while `relograph serve demo/room-1.map` runs: `python examples/05_ask_a_server.py`
"""

import sys
from pathlib import Path

import relograph
from relograph.client import UnavailableError

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
photos = sorted(Path("demo/rooms/room-1").glob("seq-*/*.color.png"))[-3:]  # no sequence of the map has them

with relograph.Client(url) as client:  # the key, where one is needed, is in RELOGRAPH_API_KEY
    try:
        place = client.maps()[0]
    except UnavailableError as error:
        sys.exit(str(error))
    print(f"{place.name}: {place.num_frames} photos, change {place.revision}")
    answer = None
    for photo in photos:  # each with the one before as its prior
        answer = client.localize(place.name, photo, prior=answer and answer.as_prior())
        where = answer.reason if answer.cam_center_world is None else answer.cam_center_world.round(3).tolist()
        print(f"{photo.name}: {where}, {answer.confidence:.0%} sure, {answer.latency_ms['total']:.0f} ms")
        likest = answer.references[0]
        thumbnail = client.thumbnail(place.name, likest.name)
        print(f"  beside {likest.name}, of which the map keeps {len(thumbnail)} bytes of JPEG")
