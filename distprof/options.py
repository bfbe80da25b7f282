"""Options, declared once: a struct defines the command line, checks TOML and documents both.

::

    class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        nodes: Annotated[int, option("Nodes; run the same command on each.", ge=1)] = 1

    convert({"nodes": 2}, LaunchOptions, "[launch] ")   # TOML and JSON, with clear messages
    click_options(options_of(LaunchOptions))            # --nodes, with the same help

Type and bounds of a field are its validation. An integer that determines work or memory has an
upper bound (``le``), and none exceeds 64 bits.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from distprof.bounds import wrong_number
from distprof.errors import UsageError
from distprof.units import finite_range

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
_SHOWN = 80
"""Characters of a rejected value that its message quotes."""

_LARGEST = 2**63 - 1
"""TOML integers have 64 bits; a larger one would break the arithmetic that uses it."""

_PLAIN: dict[type[inspect.Type], tuple[str, type]] = {
    inspect.BoolType: ("true or false", bool),
    inspect.IntType: ("a whole number", int),
    inspect.FloatType: ("a number", float),
    inspect.StrType: ("text", str),
}
"""The name of a type in messages, and the type that click converts to."""


def option(
    text: str,
    *,
    choices: Sequence[str] = (),
    expects: str = "",
    flag: str = "",
    metavar: str = "",
    **bounds: Any,
) -> msgspec.Meta:
    """Help and bounds of a field: the second argument of its ``Annotated``.

    Args:
        text: Help, one sentence with its full stop.
        choices: Allowed texts, if no ``Literal`` can list them.
        expects: Description of the expected value in messages, instead of the name of its type.
        flag: Name on the command line, without dashes; by default that of the field.
        metavar: Placeholder of the value in help.
        bounds: Arguments of :class:`msgspec.Meta`: ge, gt, le, lt, min_length.
    """
    if choices:
        bounds |= {
            "pattern": f"^({'|'.join(choices)})$",
            "extra_json_schema": {"enum": list(choices)},
        }
    extra = {"expects": expects or _one_of(choices), "flag": flag, "metavar": metavar}
    return msgspec.Meta(description=text, extra=extra, **bounds)


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option, as declared by its struct."""

    name: str  # Name of the field.
    help: str  # One sentence.
    default: Any  # Default of the field; None if a value is required.
    value_type: type  # ``bool``, ``int``, ``float`` or ``str``.
    choices: tuple[str, ...]  # Allowed values; empty for any.
    low: float | None  # Smallest value; None for any.
    high: float | None  # Largest value; None for any.
    flag: str  # Name on the command line, without dashes.
    metavar: str  # Placeholder of the value in help; empty for click's default.

    @property
    def spelling(self) -> str:
        """The option on the command line; a switch has both forms: ``--shapes/--no-shapes``."""
        if self.value_type is not bool:
            return f"--{self.flag}"
        off = self.flag.removeprefix("no-") if self.flag.startswith("no-") else f"no-{self.flag}"
        return f"--{self.flag}/--{off}"

    def click_attributes(self, *, with_range: bool = True) -> dict[str, Any]:
        """Attributes for click: type, help, metavar. No default: None means "not given"."""
        import click

        attributes: dict[str, Any] = {"default": None, "help": self.help}
        if self.metavar:
            attributes["metavar"] = self.metavar
        if self.choices:
            attributes["type"] = click.Choice(self.choices)
        elif with_range and (self.low is not None or self.high is not None):
            kind: Any = click.IntRange if self.value_type is int else finite_range
            attributes["type"] = kind(self.low, self.high)
        elif self.value_type is float:
            attributes["type"] = finite_range()
        elif self.value_type is not bool:
            attributes["type"] = self.value_type
        return attributes


def options_of(kind: type[msgspec.Struct]) -> tuple[Option, ...]:
    """The options that a struct declares, in order; tables and lists are skipped."""
    found, hints = inspect.type_info(kind), get_type_hints(kind, include_extras=True)
    assert isinstance(found, inspect.StructType)
    bare = [(field, _bare(_without_none(field.type))) for field in found.fields]
    return tuple(
        _option(field, hints[field.name])
        for field, plain in bare
        if isinstance(plain, inspect.LiteralType) or type(plain) in _PLAIN
    )


def click_options(
    options: Collection[Option], **more: Mapping[str, Any]
) -> Callable[[Command], Command]:
    """A decorator that adds these options to a command."""
    import click

    def decorate(command: Command) -> Command:
        for each in reversed(tuple(options)):
            attributes = {**each.click_attributes(), **more.get(each.name, {})}
            command = click.option(each.spelling, each.name, **attributes)(command)
        return command

    return decorate


def convert(values: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Validate a table of TOML or JSON and convert it to a struct, or raise a UsageError."""
    try:
        converted = msgspec.convert(values, kind)
    except msgspec.ValidationError:
        raise UsageError(where + _problem(values, kind, "")) from None
    for name, value in values.items():
        if wrong_number(value, most=_LARGEST):
            raise UsageError(
                f"{where}{name} must be a number of at most 64 bits, not {_short(value)}"
            )
    return converted


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document that a user wrote.

    ValueError if it is not valid TOML, is nested too deeply, or contains ``nan``, ``inf`` or an
    integer of more than 64 bits; the message says which.
    """
    try:
        values = tomllib.loads(text)
        wrong = wrong_number(values, most=_LARGEST)
    except RecursionError:
        raise ValueError("not valid TOML: it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    except ValueError:  # Python rejects thousands of digits
        wrong = "a whole number of more than 64 bits"
    if wrong:
        raise ValueError(f"it contains {wrong}")
    return values


def whole_number(text: str, *, most: int) -> int | None:
    """The whole number in a text; None if there is none or it is above ``most``.

    ``int`` raises an error for thousands of digits, and for some characters that count as digits.
    """
    is_short = text.isdecimal() and len(text) <= len(str(most))
    number = int(text) if is_short else None
    return number if number is not None and number <= most else None


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Reject an unknown name; the UsageError suggests the nearest and lists all."""
    if name not in known:
        raise UsageError(_unknown(what, name, known))


# Why a value was rejected ------------------------------------------------------------------------


def _problem(value: object, hint: Any, place: str) -> str:
    """Why a value does not fit its type, for the innermost part that shows the problem."""
    for part, inner, where in _parts(value, hint, place):
        try:
            msgspec.convert(part, inner)
        except msgspec.ValidationError:
            return _problem(part, inner, where)
    declared = _without_none(inspect.type_info(hint))
    kind = _bare(declared)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        return _problem_of_table(value, kind, place)
    extra = declared.extra or {} if isinstance(declared, inspect.Metadata) else {}
    expected = extra.get("expects") or _one_of(_literals(hint)) or _expected(kind)
    return f"{place or 'it'} must be {expected}, not {_short(value)}"


def _parts(value: object, hint: Any, place: str) -> Iterator[tuple[object, Any, str]]:
    """Values inside another, with the type of the field or element, and their places."""
    kind, before = _bare(_without_none(inspect.type_info(hint))), f"{place}." if place else ""
    # arguments of ``Mapping[str, X]`` or ``tuple[X, ...]``, annotated or not
    inner = get_args(get_args(hint)[0] if hasattr(hint, "__metadata__") else hint)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        hints = get_type_hints(kind.cls, include_extras=True)
        names = {field.encode_name: field.name for field in kind.fields}
        for key in value:
            if key in names:
                yield value[key], hints[names[key]], f"{before}{key}"
    elif isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        for key, each in value.items():
            yield each, inner[1], f"{before}{key}"
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield each, inner[0], f"{place}[{number}]"


def _problem_of_table(value: Mapping[str, Any], kind: inspect.StructType, place: str) -> str:
    """Why a table of valid values is rejected: an unknown or missing key, or a contradiction."""
    before = f"{place}." if place else ""
    known = [field.encode_name for field in kind.fields]
    for key in value:
        if key not in known:
            return _unknown(f"{before}{key}", key, known)
    for field in kind.fields:
        if field.required and field.encode_name not in value:
            return f"{before}{field.encode_name} is missing"
    try:
        msgspec.convert(value, kind.cls)
    except msgspec.ValidationError as error:  # of __post_init__
        return f"{place}: {error}" if place else str(error)
    raise AssertionError(kind)  # convert() rejected it, so one of the above must apply


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}? Choose from" if near else "choose from"
    return f"{what} is unknown: {advice} {', '.join(known)}"


def _expected(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.StructType | inspect.DictType):
        return "a table"
    if isinstance(kind, inspect.VarTupleType):
        return "a list"
    if isinstance(kind, inspect.UnionType):  # an integer or a float
        return "a number"
    name = _PLAIN[type(kind)][0]
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return name
    if kind.ge is not None and kind.le is not None:
        return f"{name} from {kind.ge:,} to {kind.le:,}"
    bounds = {"of at least": kind.ge, "above": kind.gt, "of at most": kind.le, "below": kind.lt}
    words = [f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None]
    return f"{name} {' and '.join(words)}" if words else name


def _one_of(choices: Sequence[Any]) -> str:
    return f"one of {', '.join(str(each) for each in choices if each != '')}" if choices else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# What a struct declares --------------------------------------------------------------------------


def _option(field: inspect.Field, hint: Any) -> Option:
    declared = _without_none(field.type)
    assert isinstance(declared, inspect.Metadata), f"{field.name} declares no option"
    schema, extra = declared.extra_json_schema or {}, declared.extra or {}
    kind = _bare(declared)
    literals = _literals(hint)
    return Option(
        name=field.name,
        help=schema["description"],
        default=None if field.default is msgspec.NODEFAULT else field.default,
        value_type=str if literals else _PLAIN[type(kind)][1],
        choices=tuple(map(str, literals or schema.get("enum", ()))),
        low=getattr(kind, "ge", None),
        high=getattr(kind, "le", None),
        flag=extra["flag"] or field.name.replace("_", "-"),
        metavar=extra["metavar"],
    )


def _without_none(kind: inspect.Type) -> inspect.Type:
    """The type ``X`` of ``X | None``, with its metadata."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    rest = tuple(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return rest[0] if len(rest) == 1 else inspect.UnionType(rest)


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type without its metadata."""
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _literals(hint: Any) -> tuple[Any, ...]:
    """Values of a ``Literal`` in source order, which msgspec does not keep."""
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return inner
    return tuple(value for each in inner for value in _literals(each))
