"""The model card of MatchGNN's weights: what they are, what made them, what they are for, and what was measured.

Every number in it is read from the weights' own metadata or from a file of results.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from relograph.evaluation.training_history import errors_text, rounds_table
from relograph.evaluation.weights_results import Document, EvaluationResults
from relograph.localization.confidence import RIGHT_DEG, RIGHT_M
from relograph.localization.localizer import MAX_REFERENCES
from relograph.models.match_gnn import COARSE_STRIDE, FINE_STRIDE
from relograph.models.shipped import LoadedMatchGNN
from relograph.rooms.layout import LayoutConfig, make_home
from relograph.rooms.room_maps import FIRST_SEED
from relograph.rooms.texture_sources import SourcePackage, sources_table
from relograph.rooms.textures import FAMILY_SIZES
from relograph.training.match_training import TrainingRecord

NUM_HOMES_MEASURED = 100


@dataclass(frozen=True)
class CardFacts:
    """All that the card speaks of."""

    network: LoadedMatchGNN
    """With its calibration."""
    num_bytes: int
    """Of the weights on disk."""
    textures: Sequence[SourcePackage]
    """Of the archive that the training took photographs from; none where it took none."""
    evaluations: Sequence[EvaluationResults]
    history: Document | None


def model_card(facts: CardFacts) -> str:
    """The card in Markdown."""
    parts = [
        "# MatchGNN: model card",
        "Written by `relograph weights publish`: edit what it reads, not this.",
        *_what_it_is(facts),
        *_intended_use(),
        *_limits(facts),
        *_data(facts),
        *_training(facts),
        *_results(facts),
        *_licences(facts),
    ]
    return "\n\n".join(part if part.startswith("|") else _wrapped(part) for part in parts) + "\n"


def _what_it_is(facts: CardFacts) -> list[str]:
    network = facts.network
    num_weights = sum(parameter.numel() for parameter in network.model.parameters())
    config = network.model.config
    return [
        "## What it is",
        "A network that tells where a photo was taken, in a place that it was never trained on: from photos of that "
        "place whose poses are known, 1 to "
        f"{MAX_REFERENCES} of them at a time. Every cell of {COARSE_STRIDE} x {COARSE_STRIDE} pixels of the query "
        f"looks for itself in each reference, and for its exact place on a grid of {FINE_STRIDE} pixels; a graph "
        "network over the references sees their known poses and says the query's, with an expected error; a "
        "last layer without weights settles that pose on the matches. They go on to a solver where PoseLib is "
        "installed. The same encoder makes the descriptor that finds the references.",
        "\n".join(
            [
                "| | |",
                "| :--- | :--- |",
                f"| Weights | {num_weights:,}, half precision, {facts.num_bytes / 1e6:.1f} MB on disk |",
                f"| SHA-256 | `{network.sha256}` |",
                f"| Trained at | {_stream(facts)['image_width']} x {_stream(facts)['image_height']} pixels |",
                f"| Descriptor | NetVLAD, {config.num_clusters} words, {config.descriptor_dim} numbers |",
                "| Answers | pose (camera to world, metres), covariance, confidence, focal length, or a refusal with "
                "its reason |",
            ]
        ),
    ]


def _intended_use() -> list[str]:
    return [
        "## Intended use",
        "Finding the camera of a photo in rooms, from photos of the same rooms with known poses in metres: research, "
        "robots, augmented reality, checks of other methods. `relograph.localization.Localizer` takes it, with the "
        "intrinsics of the photo where they are known and without them where they are not.",
        "Not for decisions on which somebody's safety depends, and not for finding people: it knows places only from "
        "the photos that it is given.",
    ]


def _limits(facts: CardFacts) -> list[str]:
    stream, calibration = _stream(facts), facts.network.calibration
    assert calibration is not None
    low, high = home_sizes_m(LayoutConfig(max_rooms=stream["layout"]["max_rooms"]))
    focal, distortion = stream["focal_range"], stream["max_distortion"]
    return [
        "## Limits",
        "\n".join(
            [
                "- **It has never seen a real photograph of a room.** It is trained on rendered rooms of boxes and "
                "cylinders; photographs and game textures hang on their walls. People, animals, mirrors, glass and "
                "anything that moves are not in them, nor is the world outdoors.",
                f"- **Scale of rooms:** {NUM_HOMES_MEASURED} of the homes that it is trained in are {low[0]:.1f} to "
                f"{high[0]:.1f} m long, {low[1]:.1f} to {high[1]:.1f} m wide and {low[2]:.1f} to {high[2]:.1f} m high. "
                "In halls, streets or at the scale of a desk the regressed pose has not been trained; the solver knows "
                "no such scale.",
                f"- **Lenses:** focal lengths of {focal[0]:g} to {focal[1]:g} of the longer side, a first radial "
                f"coefficient within {distortion:g}. Wider ones, and fisheyes, only with their intrinsics.",
                _colour(stream),
                f"- **Queries and references** share {stream['overlap'][0]:.0%} of the view or more in most lessons.",
                "- **Scale needs a baseline:** where all references stand at one point or on a line, matches do not "
                "tell how far the query is. The answer says so, and its distance is the network's guess.",
                "- **Symmetric or repeated rooms** look alike to it as they do to people.",
            ]
        ),
        f"It refuses (`localized=False`, with a reason) where the chance that its pose is within {RIGHT_M:g} m and "
        f"{RIGHT_DEG:g} degrees is below {calibration.solved.threshold:.0%} for a pose that matches agree on, below "
        f"{calibration.unsolved.threshold:.0%} for the network's own where they agree on none, and below "
        f'{calibration.regressed.threshold:.0%} where they are not asked (`solver="regress"`). Chance and thresholds '
        f"were fitted to {calibration.num_answers:,} answers in validation rooms, and to nothing else; in other "
        "surroundings they may be off.",
    ]


def _colour(stream: Mapping[str, Any]) -> str:
    share = stream.get("grey_share", 0.0)  # which weights of earlier rounds do not name
    if not share:
        return "- **Colour:** all lessons are in colour, and of grey photos fewer are localized."
    return f"- **Colour:** {share:.0%} of the lessons of the last round have a grey query, grey references, or both."


def _data(facts: CardFacts) -> list[str]:
    textures: Mapping[str, Any] | None = _metadata(facts)["textures"]
    sets = _metadata(facts)["config"]["texture_sets"]
    parts = [
        "## Training data",
        "`RoomStream`: procedural homes, furnished, lit and photographed in graphs that never come again, with exact "
        f"poses and depths; {sum(FAMILY_SIZES.values())} procedural textures, made {sets} times over for each round. "
        "Rooms come in three parts that never meet: training; validation, for the choice of weights, thresholds and "
        "confidence; and test, which is only scored. No real frame and no data set of anybody took part in training.",
    ]
    if textures is None:
        return [*parts, "No photographs were used as textures."]
    num_images = sum(sum(package.images_by_split.values()) for package in facts.textures)
    return [
        *parts,
        f"Textures besides: an archive of {num_images:,} crops of photographs, paintings and game textures with free "
        f"licences, 256 pixels wide, of which {textures['num_images']:,} are for training, and none of a source file "
        "that validation or test rooms show. `tools/pack_textures.py` makes it from these Debian packages, byte for "
        f"byte, with SHA-256 `{textures['sha256']}`; `sources.json` in it names every file with its copyright. The "
        "archive is not distributed.",
        sources_table(facts.textures),
    ]


def _training(facts: CardFacts) -> list[str]:
    metadata = _metadata(facts)
    record, made = TrainingRecord.of(metadata), metadata["provenance"]
    parts = [
        "## Training",
        f"From random weights, in {_counted(record.rounds, 'round')}: {record.seconds:,.0f} seconds "
        f"({record.seconds / 60:.1f} minutes) and {record.graphs:,} photographed graphs of a query and its references, "
        "each seen once.",
        "\n".join(
            [
                "| The last round | |",
                "| :--- | :--- |",
                f"| Device | {made['device_name']} |",
                f"| Code | relograph {made['relograph']}, commit {made['git_commit'] or 'unknown'}, source "
                f"`{made['source_sha256'][:16]}` |",
                f"| Versions | Python {made['python']}, torch {made['torch']}, numpy {made['numpy']} |",
                f"| Begun | {made['timestamp_utc']} |",
                f"| Command | `{made['command']}` |",
                f"| Validation rooms | {errors_text(metadata['validation'])}, without intrinsics |",
            ]
        ),
    ]
    if facts.history is not None:
        rounds = facts.history["metadata"]["rounds"]
        parts.append(rounds_table(rounds))
        others = {row["textures_sha256"] for row in rounds} - {(metadata["textures"] or {}).get("sha256")}
        if others:
            named = ", ".join(sorted("none" if sha256 is None else f"`{sha256}`" for sha256 in others))
            parts.append(f"Earlier rounds took photographs from other archives: {named}.")
    return parts


def _results(facts: CardFacts) -> list[str]:
    parts = [
        "## Results",
        "Medians over all queries; a query without a pose counts as infinitely wrong. Rows of copying say how hard the "
        "queries are.",
    ]
    for evaluation in facts.evaluations:
        parts += [f"### {evaluation.title}", evaluation.report(), evaluation.made_by()]
    return parts


def _licences(facts: CardFacts) -> list[str]:
    licences = sorted({licence for package in facts.textures for licence in package.images_by_licence})
    parts = [
        "## Licences",
        "The weights and this card: Apache-2.0, as the rest of relograph. See NOTICE on patents.",
    ]
    if licences:
        parts.append(
            f"The images that textured some of the rooms are under {', '.join(licences)}, each as the table above "
            "says. None of them is part of this package."
        )
    return parts


@cache
def home_sizes_m(layout: LayoutConfig) -> tuple[list[float], list[float]]:
    """Least and largest length, width and height of some of the homes of training, in metres."""
    families = {family: range(number, number + 1) for number, family in enumerate(FAMILY_SIZES)}
    first = FIRST_SEED["training"]
    sizes = np.stack([make_home(first + number, families, layout).size_m for number in range(NUM_HOMES_MEASURED)])
    return sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist()


def _metadata(facts: CardFacts) -> Mapping[str, Any]:
    return facts.network.metadata


def _stream(facts: CardFacts) -> Mapping[str, Any]:
    stream: Mapping[str, Any] = _metadata(facts)["config"]["stream"]
    return stream


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _wrapped(part: str) -> str:
    """Prose in lines of 120 letters; tables, headings and what tables of results say around them as they are."""
    if part.startswith(("#", "**")) or "\n\n" in part or "\n|" in part:
        return part
    lines = part.split("\n")
    return "\n".join(
        textwrap.fill(
            line,
            120,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
