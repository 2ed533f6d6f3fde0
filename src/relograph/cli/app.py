"""The `relograph` command and its commands."""

import io
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from relograph.cli import (
    ablate,
    bench,
    convert,
    demo,
    doctor,
    eval,
    experiments,
    export,
    localize,
    map,
    report,
    rooms,
    scene,
    serve,
    train,
    view,
    weights,
)
from relograph.cli.failing import failures_as_one_line


class _Commands(TyperGroup):
    """The group of all commands: what one of them raises becomes one line, also when tests call it in-process."""

    def invoke(self, ctx: Any) -> Any:
        with failures_as_one_line(keep_traceback=bool(ctx.params.get("traceback"))):
            return super().invoke(ctx)


app = typer.Typer(
    name="relograph",
    cls=_Commands,
    help="Tells where a photo was taken: the pose of its camera among posed photos of a place.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
BEGIN, PLACES, NETWORKS = "To begin with", "Places and photos", "Networks and experiments"
app.command("demo", rich_help_panel=BEGIN)(demo.demo_command)
app.command("doctor", rich_help_panel=BEGIN)(doctor.doctor_command)
app.command("localize", rich_help_panel=PLACES)(localize.localize_command)
app.command("view", rich_help_panel=PLACES)(view.view_command)
app.command("convert", rich_help_panel=PLACES)(convert.convert_command)
app.add_typer(scene.app, name="scene", rich_help_panel=PLACES)
app.add_typer(map.app, name="map", rich_help_panel=PLACES)
app.add_typer(serve.app, name="serve", rich_help_panel=PLACES)
app.command("eval", rich_help_panel=NETWORKS)(eval.eval_command)
app.command("report", rich_help_panel=NETWORKS)(report.report_command)
app.command("train", rich_help_panel=NETWORKS)(train.train_command)
app.command("ablate", rich_help_panel=NETWORKS)(ablate.ablate_command)
app.command("export", rich_help_panel=NETWORKS)(export.export_command)
app.add_typer(rooms.app, name="rooms", rich_help_panel=NETWORKS)
app.add_typer(weights.app, name="weights", rich_help_panel=NETWORKS)
app.add_typer(experiments.app, name="experiments", rich_help_panel=NETWORKS)
app.add_typer(bench.app, name="bench", rich_help_panel=NETWORKS)


def _print_version(wanted: bool) -> bool:
    if wanted:
        import relograph

        typer.echo(relograph.__version__)
        raise typer.Exit()
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error came from, for a bug report.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command that the shell asked for."""
    # A file's name may hold bytes that the terminal has no letters for; showing it escaped beats failing over it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Asked to end, a command unwinds: its workers end with it and half-written folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app(prog_name="relograph")
