"""`relograph eval --rooms`: MatchGNN in homes that nobody trained on, and with queries that are not in the map."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from relograph.errors import ConfigError
from relograph.evaluation.answers_file import AnswersByKind
from relograph.evaluation.calibrating import fit_calibration
from relograph.evaluation.conditions import condition_groups
from relograph.evaluation.place import Place
from relograph.evaluation.place_localizer import REGRESSION, OurMap
from relograph.evaluation.place_rooms import RoomPlace
from relograph.evaluation.place_run import (
    PlaceConfig,
    about_references,
    command_to_publish,
    with_what_is_installed,
)
from relograph.evaluation.rooms_gather import INT8, RoomsOptions, Ways, gather, make_homes
from relograph.evaluation.rooms_report import RoomsAnswers, RoomsReport
from relograph.evaluation.rooms_varied import gather_varied
from relograph.evaluation.writing import write_whole
from relograph.localization.confidence import UNCALIBRATED
from relograph.localization.map_features import Precision
from relograph.models.shipped import LoadedMatchGNN, save_calibration
from relograph.progress import SILENT, Progress
from relograph.results import provenance, write_result
from relograph.rooms.room_maps import Part

PARTS = "parts"
"""Folder of the answers to each home's queries, for a run to go on where another was ended."""


def evaluate_rooms(
    part: Part,
    network: LoadedMatchGNN,
    options: RoomsOptions,
    config: PlaceConfig,
    *,
    homes: Sequence[RoomPlace] | None = None,
    elsewhere: Place | None = None,
    calibrate: Path | None = None,
    device: str = "cpu",
    output: Path,
    paths: Mapping[Path | None, str],
    warn: Callable[[str], None] = lambda note: None,
    progress: Progress = SILENT,
) -> str:
    """Localize the queries of homes in their maps and in others; tables in Markdown, the rest in `output`.

    The homes are made, unless they are given; the last one lends its queries only. `elsewhere` is another place, whose
    queries are looked for in the homes' maps, and theirs in its map. `calibrate` is the folder of the network's
    weights: their confidence is fitted to the answers, in other conditions, too, and saved there, before anything is
    counted.
    """
    config = with_what_is_installed(config, warn)
    ways = Ways.of(config)
    if calibrate is not None and ways.main == REGRESSION:
        raise ConfigError(
            "expected the solver's answers to calibrate on too, found regression alone. Install the geometry extra, "
            "and leave --solver regress out."
        )
    if homes is None:
        homes = make_homes(part, options, device=device, progress=progress)
    gathered = gather(homes, network, config, options, ways, elsewhere, parts=output / PARTS, progress=progress)
    varied: list[AnswersByKind] = []
    if options.varied or calibrate is not None:
        varied = gather_varied(homes, network, config, options, ways, parts=output / PARTS, progress=progress)
    answers = RoomsAnswers(tuple(homes[: options.num_homes]), tuple(gathered), ways, tuple(varied))
    groups = condition_groups(config.num_references, options.reference_counts) if varied else ()
    if calibrate is not None:
        usual = [answers.judged(way) for way in ways.judged]
        others = [answers.judged_in(group, way) for group in groups for way in ways.judged]
        network = replace(network, calibration=fit_calibration(usual, network.sha256, others))
        assert network.calibration is not None
        save_calibration(calibrate, network.calibration)
    calibration = network.calibration or UNCALIBRATED
    answers = answers.judged_by(calibration)
    details: dict[str, object] = {
        "data": f"{part} rooms",
        "data_fingerprint": [home.place.fingerprint for home in homes],
        "num_homes": options.num_homes,
        "one_query_in": options.every,
        "textures": None if options.textures is None else "$TEXTURES",
        **about_references(config),
        "weights_sha256": network.sha256,
        "calibrated": network.calibration is not None,
    }
    if elsewhere is not None:
        details |= {"elsewhere": elsewhere.name, "elsewhere_fingerprint": elsewhere.fingerprint}
    command = command_to_publish(paths)

    def write(name: str, rows: Sequence[Mapping[str, object]]) -> None:
        write_result(output / name, rows, command=command, seed=options.seed, device=device, details=details)

    report = RoomsReport(f"{part} rooms", output, config, options, write, warn)
    comparisons = answers.comparisons(config, progress)
    made = provenance(command=command, seed=options.seed, device=device)
    text = "\n".join(
        [
            report.accuracy(comparisons, {**details, "provenance": made}),
            report.retrieval(comparisons),
            report.reference_counts(answers),
            *([report.int8(answers, _bytes_per_photo(homes[0], network))] if answers.of(0, INT8, REGRESSION) else []),
            report.reliability(answers, calibration, fitted=network.calibration is not None),
            report.false_accepts(answers, comparisons),
            *(
                [report.conditions(answers, groups, calibration, fitted_to_them=calibrate is not None)]
                if groups
                else []
            ),
        ]
    )
    write_whole(output / "report.md", text.encode())
    return text


def _bytes_per_photo(home: RoomPlace, network: LoadedMatchGNN) -> dict[Precision, float]:
    """That the features of a map take."""
    one, precisions = home.place.map[[0]], get_args(Precision)
    return {
        precision: OurMap.of(one, network, precision=precision).features.bytes_per_photo for precision in precisions
    }
