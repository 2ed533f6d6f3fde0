"""Configurations: frozen dataclasses, one a part, to and from plain values and `--set graph.stride=1`.

A configuration is a dataclass whose fields are numbers, words, paths, tuples of those, or further configurations. The
string under a field is its documentation: one sentence, in one place.
"""

import ast
import difflib
import inspect
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from relograph.errors import ConfigError

C = TypeVar("C")


@dataclass(frozen=True)
class FieldDoc:
    """What a person needs to know to set one field."""

    path: str
    """Its name from the top, for example `graph.stride`."""
    type: str
    """What may stand behind the `=`, for example `int`, `world | camera`, `float | none`, `int,int,...`."""
    default: str | None
    """The default as one would write it behind the `=`; None where a value must be given."""
    doc: str
    """The string under the field, on one line."""


def config_to_dict(config: object) -> dict[str, object]:
    """The configuration as dicts, lists, numbers and strings, as JSON holds them; `config_from_dict` turns it back.

    Example:
        >>> @dataclass(frozen=True)
        ... class EncoderConfig:
        ...     blocks: tuple[int, ...] = (3, 4, 6, 3)
        ...     weights: Path | None = None
        >>> config_to_dict(EncoderConfig())
        {'blocks': [3, 4, 6, 3], 'weights': None}
    """
    return {field.name: _plain(getattr(config, field.name)) for field in _settable_fields(config)}


def config_from_dict(cls: type[C], values: Mapping[str, object], where: str = "") -> C:
    """The configuration of class `cls` with these values, and its defaults where there are none.

    `where` says where the values are from, for messages: a file. An unknown name is an error that suggests the nearest
    known one, and so is a value of another type; a whole number may stand for a float.

    Example:
        >>> @dataclass(frozen=True)
        ... class GraphConfig:
        ...     num_references: int = 7
        ...     stride: int = 5
        >>> config_from_dict(GraphConfig, {"stride": 1})
        GraphConfig(num_references=7, stride=1)
        >>> config_from_dict(GraphConfig, {"strid": 1})
        Traceback (most recent call last):
        relograph.errors.ConfigError: expected a field of GraphConfig, found 'strid'. Did you mean 'stride'?
    """
    try:
        return _from_mapping(cls, values, path="")
    except ConfigError as error:
        if not where:
            raise
        raise ConfigError(f"{where}: {error}") from error


def with_overrides(config: C, assignments: Sequence[str]) -> C:
    """The configuration with some fields set by text, as after `--set`; where a field is set twice the last one holds.

    Values are read by the field's type: `true`, `7`, `5e-5`, `camera`, `none`, `3,4,6,3` or, as JSON, `[3, 4, 6, 3]`.
    All of them are set before anything is checked, so two fields that must fit each other can change together.

    Example:
        >>> @dataclass(frozen=True)
        ... class GraphConfig:
        ...     stride: int = 5
        >>> with_overrides(GraphConfig(), ["stride=1"])
        GraphConfig(stride=1)
    """
    steps_and_text = []
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"expected name=value, found {assignment!r}. Write it like graph.stride=1.")
        steps_and_text.append((tuple(step.strip() for step in path.split(".")), text.strip()))
    return _overridden(config, steps_and_text, path="")


def describe_fields(config: object) -> list[FieldDoc]:
    """Every field of a configuration class, those of its parts included, in the order in which they are written.

    Given a configuration instead of its class, the defaults are its values.

    Example:
        >>> @dataclass(frozen=True)
        ... class OptimConfig:
        ...     learning_rate: float = 5e-5
        >>> describe_fields(OptimConfig)
        [FieldDoc(path='learning_rate', type='float', default='5e-05', doc='')]
    """
    if isinstance(config, type):
        return list(_describe(config, None, path=""))
    return list(_describe(type(config), config, path=""))


# Plain values


def _plain(value: object) -> object:
    if is_dataclass(value):
        return config_to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return value.as_posix()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a configuration cannot hold a {type(value).__name__}")


def _from_mapping(cls: type[C], values: Mapping[str, object], path: str) -> C:
    types = _field_types(cls)
    for name in values:
        if name not in types:
            raise _unknown_field(cls, path, str(name))
    for field in _settable_fields(cls):
        if field.name not in values and _default(field) is MISSING:
            raise _wrong_value("nothing", types[field.name], _joined(path, field.name))
    return cls(**{name: _from_plain(value, types[name], _joined(path, name)) for name, value in values.items()})


def _from_plain(value: object, annotation: Any, path: str) -> object:
    """A plain value as what a field of that type holds."""
    for member in _union_members(annotation):
        if isinstance(value, Mapping) and is_dataclass(member):
            return _from_plain(value, member, path)  # whose own message says what is wrong inside
        with suppress(ConfigError):
            return _from_plain(value, member, path)
    if is_dataclass(annotation) and isinstance(value, Mapping):
        return _from_mapping(cast(type, annotation), value, path)
    if get_origin(annotation) is tuple and isinstance(value, list | tuple):
        item_types = _item_types(annotation, len(value))
        with suppress(ConfigError, ValueError):  # an item of another type, or another number of them
            return tuple(_from_plain(item, of, path) for item, of in zip(value, item_types, strict=True))
    elif get_origin(annotation) is Literal:
        for option in get_args(annotation):
            if option == value and type(option) is type(value):  # True == 1 in Python, and not here
                return option
    elif annotation is Path and isinstance(value, str | Path):
        return Path(value)
    elif annotation is float and isinstance(value, float | int) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
    elif annotation in (bool, int, str, NoneType) and type(value) is annotation:
        return value
    raise _wrong_value(repr(value), annotation, path)


# Text


def _overridden(config: C, assignments: Sequence[tuple[tuple[str, ...], str]], path: str) -> C:
    """The configuration with the values at some paths, each a tuple of names, read from text."""
    types = _field_types(type(config))
    changes: dict[str, object] = {}
    assignments_by_part: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for (name, *rest), text in assignments:
        if name not in types or (rest and not is_dataclass(getattr(config, name))):
            raise _unknown_field(type(config), path, ".".join([name, *rest]))
        if rest:
            assignments_by_part.setdefault(name, []).append((tuple(rest), text))
        else:
            changes[name] = _from_plain(_meant_by(text, types[name]), types[name], _joined(path, name))
    for name, inner in assignments_by_part.items():
        changes[name] = _overridden(getattr(config, name), inner, _joined(path, name))
    return replace(config, **changes)  # type: ignore[type-var]  # a dataclass, for which Python has no type


def _meant_by(text: str, annotation: Any) -> object:
    """The plain value that `text` stands for in a field of that type; the text itself where it stands for none."""
    if members := _union_members(annotation):
        return next((value for member in members if (value := _meant_by(text, member)) != text), text)
    if annotation is NoneType:
        return None if text.lower() == "none" else text
    if annotation is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if get_origin(annotation) is Literal:
        return next((option for option in get_args(annotation) if _text(option) == text), text)
    try:
        if get_origin(annotation) is tuple:
            if text.startswith("["):
                return json.loads(text)
            parts = [part.strip() for part in text.split(",")] if text else []
            return [_meant_by(part, of) for part, of in zip(parts, _item_types(annotation, len(parts)), strict=True)]
        return annotation(text) if annotation in (int, float) else text
    except ValueError:
        return text


def _text(value: object) -> str:
    """The value as `_meant_by` reads it again."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, tuple):
        return str(value)
    words = [_text(item) for item in value]
    is_clear = all(word == word.strip() and word and not set(word) & set(",[") for word in words)
    return ",".join(words) if is_clear else json.dumps(_plain(value))


# Documentation


def _describe(cls: type, config: object, path: str) -> Iterator[FieldDoc]:
    """The fields of `cls`, with the values of `config` as defaults where there is one."""
    types, docs = _field_types(cls), _field_docs(cls)
    for field in _settable_fields(cls):
        field_type, field_path = types[field.name], _joined(path, field.name)
        default = _default(field) if config is None else getattr(config, field.name)
        if is_dataclass(default):
            yield from _describe(type(default), default, field_path)
        elif is_dataclass(field_type) and default is MISSING:
            yield from _describe(cast(type, field_type), None, field_path)
        else:
            text = None if default is MISSING else _text(default)
            yield FieldDoc(field_path, _type_text(field_type), text, docs.get(field.name, ""))


def _field_docs(cls: type) -> dict[str, str]:
    """The string under each field, by the field's name, from the source of the class and of those it derives from."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        try:
            source = inspect.getsource(owner)
        except (OSError, TypeError):  # typed into a console, or built in
            continue
        for definition in ast.parse(textwrap.dedent(source)).body:
            assert isinstance(definition, ast.ClassDef)
            for statement, below in pairwise(definition.body):
                match statement, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                        docs[name] = " ".join(doc.split())
    return docs


def _type_text(annotation: Any) -> str:
    if members := _union_members(annotation):
        return " | ".join(_type_text(member) for member in sorted(members, key=lambda member: member is NoneType))
    if get_origin(annotation) is Literal:
        return " | ".join(_text(option) for option in get_args(annotation))
    if get_origin(annotation) is tuple:
        words = [_type_text(item) for item in _item_types(annotation, 2)]
        return ",".join([*words, "..."] if get_args(annotation)[-1] is ... else words)
    return {NoneType: "none", Path: "path"}.get(annotation) or str(annotation.__name__)


# Messages


def _unknown_field(cls: type, path: str, name: str) -> ConfigError:
    found = _joined(path, name)
    known = [_joined(path, field.name) for field in _settable_fields(cls)]
    settable = [_joined(path, doc.path) for doc in _describe(cls, None, "")]
    in_another_part = [other for other in settable if other.split(".")[-1] == name.split(".")[-1]]
    nearest = in_another_part or difflib.get_close_matches(found, [*known, *settable], n=1)
    advice = f"Did you mean {nearest[0]!r}?" if nearest else f"Choose one of: {', '.join(known)}."
    return ConfigError(f"expected a field of {cls.__name__}, found {found!r}. {advice}")


def _wrong_value(found: str, annotation: Any, path: str) -> ConfigError:
    options = [_text(option) for option in get_args(annotation) if get_origin(annotation) is Literal]
    nearest = difflib.get_close_matches(found.strip("'"), options, n=1)
    advice = f"Did you mean {nearest[0]!r}?" if nearest else f"Write it like {_example(annotation, path)}."
    return ConfigError(f"{path}: expected {_type_text(annotation)}, found {found}. {advice}")


def _example(annotation: Any, path: str) -> str:
    """An assignment to a field of that type."""
    if is_dataclass(annotation):
        first, *_ = _settable_fields(annotation)
        return _example(_field_types(cast(type, annotation))[first.name], _joined(path, first.name))
    if members := _union_members(annotation):
        return _example(members[-1], path)
    if get_origin(annotation) is Literal:
        return f"{path}={_text(get_args(annotation)[0])}"
    if get_origin(annotation) is tuple:
        return f"{path}={','.join(_example(item, '')[1:] for item in _item_types(annotation, 2))}"
    return f"{path}={_EXAMPLES[annotation]}"


_EXAMPLES = {bool: "true", int: "7", float: "0.5", str: "name", Path: "folder/file", NoneType: "none"}


# Types


def _field_types(cls: type) -> dict[str, Any]:
    """The type of each settable field, by its name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in _settable_fields(cls)}


def _settable_fields(config: Any) -> list[Field[Any]]:
    """The fields of a dataclass, or of its class, that its constructor takes."""
    return [field for field in fields(config) if field.init]


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _union_members(annotation: Any) -> list[Any]:
    """The types in a union, none for any other type. None comes first and str last, which takes any text."""
    if get_origin(annotation) not in (Union, UnionType):
        return []
    return sorted(get_args(annotation), key=lambda member: (member is not NoneType, member is str))


def _item_types(annotation: Any, length: int) -> list[Any]:
    """The types of the items of a tuple type, which is taken to have `length` of them where its type does not say."""
    item_types = list(get_args(annotation))
    return item_types[:1] * length if item_types[-1] is ... else item_types


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
