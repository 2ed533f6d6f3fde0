"""Homes that nobody trained on as places: the same comparison as in a scene, and queries that are not in the map.

Homes are photographed once for all weights that are scored in them: on a CPU that takes half a minute each, so they are
kept in a folder, if one is given.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Bool
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

import relograph.rooms
from relograph.evaluation.place import Place, PosedPhotos
from relograph.evaluation.writing import write_whole
from relograph.geometry import Pose
from relograph.progress import SILENT, Progress
from relograph.results import source_sha256
from relograph.rooms.room_maps import FIRST_SEED, Part, RoomMap, RoomMapConfig, room_maps
from relograph.rooms.textures import Split, fingerprint_of_photographs, make_atlas

TEXTURES_OF_PART: dict[Part, Split] = {"training": "train", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class RoomPlace:
    """A home with its map."""

    place: Place
    """With the queries that are to be found."""
    unseen: Place
    """The same map with queries of the same home that show next to nothing of it; there may be none."""


def room_places(
    part: Part,
    config: RoomMapConfig,
    *,
    textures: Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    progress: Progress = SILENT,
) -> Iterator[RoomPlace]:
    """The homes of a part, one after the other.

    `textures` is a folder or a zip file of photographs, with one folder for each split. Homes that lie in `cache` are
    read from there, and those that do not are put there, one by one.
    """
    folder = None if cache is None else cache / _cache_name(part, config, textures, seed, torch.device(device))
    files = [] if folder is None else [folder / f"home-{number:02d}.safetensors" for number in range(config.num_homes)]
    kept = []
    for file in files:
        if (home := _read(file)) is None:
            break
        kept.append(home)
    for number, home in enumerate(kept):
        yield room_place(f"home-{number:02d}", home)
    if len(kept) == config.num_homes:
        return
    atlas = make_atlas(FIRST_SEED[part] + seed, photographs=textures, split=TEXTURES_OF_PART[part], progress=progress)
    homes = room_maps(part, config, seed=seed, atlas=atlas, device=device, first_home=len(kept), progress=progress)
    for number, home in enumerate(homes, start=len(kept)):
        if folder is not None:
            _write(files[number], home)
        yield room_place(f"home-{number:02d}", home)


def room_place(name: str, home: RoomMap) -> RoomPlace:
    """A home as a place whose cameras are known."""
    images = home.images.cpu().numpy()
    in_map = ~(home.is_query | home.is_unseen)
    digest = hashlib.sha256(images.tobytes())
    digest.update(home.T_world_cam.matrix().cpu().numpy().tobytes())

    def photos(which: Bool[Tensor, "F"], kind: str) -> PosedPhotos:
        rows = which.nonzero().squeeze(1).tolist()
        return PosedPhotos(
            tuple(f"{kind}-{number:03d}" for number in range(len(rows))),
            home.T_world_cam[rows].to("cpu").to(torch.float64),
            tuple(home.camera(row) for row in rows),
            lambda idx: images[rows[idx]],
        )

    mapped, fingerprint = photos(in_map, "map"), digest.hexdigest()
    return RoomPlace(
        Place(name, mapped, photos(home.is_query, "query"), fingerprint, home.overlap[home.is_query].cpu()),
        Place(name, mapped, photos(home.is_unseen, "unseen"), fingerprint, home.overlap[home.is_unseen].cpu()),
    )


def _cache_name(part: Part, config: RoomMapConfig, textures: Path | None, seed: int, device: torch.device) -> str:
    """Names all that a home depends on: settings, photographs on its walls, and the code that makes it."""
    settings = {name: value for name, value in asdict(config).items() if name != "num_homes"}
    photographs = None if textures is None else fingerprint_of_photographs(textures)
    code = source_sha256(Path(relograph.rooms.__file__).parent)
    everything = json.dumps([part, settings, seed, device.type, photographs, code])
    return f"{part}-rooms-{hashlib.sha256(everything.encode()).hexdigest()[:16]}"


def _write(path: Path, home: RoomMap) -> None:
    tensors = {
        "images": home.images,
        "R": home.T_world_cam.R,
        "t": home.T_world_cam.t,
        "K": home.K,
        "distortion": home.distortion,
        "is_query": home.is_query,
        "is_unseen": home.is_unseen,
        "overlap": home.overlap,
    }
    write_whole(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))


def _read(path: Path) -> RoomMap | None:
    """None where there is no whole file: the home is photographed again then."""
    try:
        tensors = load_file(path)
        pose = Pose(tensors.pop("R"), tensors.pop("t"))
        return RoomMap(T_world_cam=pose, **tensors)
    except (OSError, SafetensorError, KeyError, TypeError):
        return None
