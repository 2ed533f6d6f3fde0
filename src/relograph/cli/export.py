"""`relograph export`: MatchGNN for runtimes other than torch."""

from pathlib import Path
from typing import Annotated

import typer

from relograph.cli.options import SeedOption


def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the exported network.")],
    weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Weights to export.", show_default="the package's own")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Encode in 8 bits, with scales learned from photos of training rooms.")
    ] = False,
    homes: Annotated[
        int, typer.Option(min=0, help="Validation rooms in which to measure what the export costs in accuracy.")
    ] = 0,
    textures: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Photographs for the walls of these rooms, by split.")
    ] = None,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write what was measured in rooms to this file.")
    ] = None,
) -> None:
    """Write MatchGNN's encoder and matcher as ONNX files, after a check that they say what torch says."""
    import torch

    from relograph.errors import ConfigError
    from relograph.evaluation.export_accuracy import measure_export, runtimes_table, training_photos
    from relograph.export import export_match_gnn
    from relograph.models.shipped import load_match_gnn
    from relograph.progress import TerminalProgress
    from relograph.results import command_line, provenance, write_result

    if output is not None and not homes:
        raise ConfigError("--output is for what is measured in rooms: say in how many with --homes.")
    network, progress = load_match_gnn(weights), TerminalProgress()
    exported = export_match_gnn(
        network,
        folder,
        precision="int8" if int8 else "float32",
        photos=training_photos(seed=seed, progress=progress) if int8 else None,
        made_by=provenance(command=command_line(), seed=seed),
        progress=progress,
    )
    for file in (exported.encoder, exported.matcher):
        differences = ", ".join(f"{name} {value:.1e}" for name, value in file.max_difference.items())
        typer.echo(f"{folder / file.file}: {file.num_bytes / 1e6:.1f} MB; largest differences to torch: {differences}")
    if homes:
        rows = measure_export(network, folder, homes, textures=textures, seed=seed, progress=progress)
        typer.echo(runtimes_table(rows))
        if output is not None:
            details = {
                "data": "validation rooms",
                "num_homes": homes,
                "weights_sha256": network.sha256,
                "precision": exported.precision,
                "num_threads": torch.get_num_threads(),
                "num_bytes": exported.encoder.num_bytes + exported.matcher.num_bytes,
            }
            write_result(output, rows, command=command_line(), seed=seed, details=details)
            typer.echo(str(output))
