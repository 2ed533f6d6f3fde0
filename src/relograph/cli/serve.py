"""`relograph serve`: localize photos over HTTP, and the keys of those who may ask."""

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from relograph.cli.printing import printable
from relograph.configuration import FieldDoc, describe_fields
from relograph.errors import ConfigError
from relograph.serving.config import ServeConfig

RUN = "run"


class _ServeGroup(TyperGroup):
    """`relograph serve MAP...` is `relograph serve run MAP...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_ServeGroup,
    help=(
        "Localize photos over HTTP, with a web page: `relograph serve MAP...` is `relograph serve run MAP...`, and "
        "`relograph serve run --help` lists its options."
    ),
    no_args_is_help=True,
)
keys_app = typer.Typer(help="Make, list and revoke the API keys of a service.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")


def option_name(field: FieldDoc) -> str:
    """The option that sets a field of the configuration; one that may be repeated names one thing."""
    name = field.path.replace("_", "-")
    return f"--{name.removesuffix('s') if field.type.endswith('...') else name}"


def _with_options(command: Callable[[ServeConfig], None]) -> Callable[..., None]:
    """A command whose options are the fields of its configuration, each with the sentence under it."""
    types, parameters = get_type_hints(ServeConfig), []
    defaults = {field.name: field.default for field in inspect.signature(ServeConfig).parameters.values()}
    for field in describe_fields(ServeConfig):
        kind, default = types[field.path], defaults[field.path]
        if kind == tuple[str, ...]:
            kind = list[str]
            default = inspect.Parameter.empty if default is inspect.Parameter.empty else []
        declared: Any = (
            typer.Argument(metavar="MAP", help=field.doc)
            if field.path == "maps"
            else typer.Option(option_name(field), help=field.doc)
        )
        parameters.append(
            inspect.Parameter(
                field.path, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
            )
        )

    def with_options(**values: Any) -> None:
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        command(ServeConfig(**plain))

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_options.__doc__ = command.__doc__
    return with_options


@app.command(RUN)
@_with_options
def run_command(config: ServeConfig) -> None:
    """Serve maps over HTTP until SIGTERM or Ctrl-C, then finish what was accepted."""
    from relograph.serving.running import serve

    def tell(url: str) -> None:
        who = "anybody on this machine" if config.keys is None else "holders of a key"
        typer.echo(printable(f"{url} for {who}; its addresses: {url}/docs. End with Ctrl-C."), err=True)

    serve(config, tell)


# Keys


class ScopeChoice(StrEnum):
    """What a key is good for."""

    READ = "read"
    WRITE = "write"


KeysOption = Annotated[Path, typer.Option("--keys", metavar="FILE", help="File of keys, as the service is given it.")]


@keys_app.command("create")
def create_command(
    keys: KeysOption,
    scope: Annotated[
        ScopeChoice, typer.Option("--scope", help="read localizes and looks; write adds and removes photos, too.")
    ] = ScopeChoice.READ,
    name: Annotated[str, typer.Option("--name", help="Whose key it is, for you to remember.")] = "",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="WHEN", help="After 90d or 12h, or at 2030-01-31T12:00Z.", show_default="never"
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME", help="A map it may see; may be repeated.", show_default="all"),
    ] = None,
) -> None:
    """Make a key and print it, once: the file keeps only its hash."""
    from relograph.serving.keys import create_key

    secret, key = create_key(keys, scope.value, name, expires=_moment(expires), maps=maps or ())
    typer.echo(secret)
    until = "" if key.expires_utc is None else f", until {key.expires_utc}"
    typer.echo(printable(f"key {key.id} of scope {key.scope}{until}; it is shown this once."), err=True)


@keys_app.command("list")
def list_command(keys: KeysOption) -> None:
    """List the keys of a file."""
    from relograph.serving.keys import read_keys

    for key in read_keys(keys):
        state = "valid" if key.is_valid(datetime.now(UTC)) else "expired"
        until = key.expires_utc or "never"
        seen = "all maps" if key.maps is None else ",".join(key.maps)
        typer.echo(printable(f"{key.id}  {key.scope:5}  {state:7}  expires {until}  {seen}  {key.name}".rstrip()))


@keys_app.command("revoke")
def revoke_command(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")], keys: KeysOption
) -> None:
    """Take a key out of a file; a service that runs notices within a second."""
    from relograph.serving.keys import revoke_key

    gone = revoke_key(keys, key_id)
    typer.echo(printable(f"key {gone.id} {gone.name}".rstrip() + " revoked."))


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    if after := re.fullmatch(r"(\d{1,5})([dh])", text):
        return datetime.now(UTC) + timedelta(**{{"d": "days", "h": "hours"}[after[2]]: int(after[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"expected a time like 90d, 12h or 2030-01-31T12:00Z, got {text[:40]!r}.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
