"""What msgspec reads of an event, and the decoders that do it.

Fields are in the order Kineto writes them, because the decoder guesses the next field first.
Arguments of collectives are sparse and read in a second pass (:mod:`.comm`): each field here costs
time on every event.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Raw, Struct

from distprof.ingest.kineto.words import USUAL_CATEGORIES
from distprof.schema import ABSENT

__all__ = [
    "DECODE_ANY",
    "DECODE_LOOSE",
    "DECODE_OBJECT",
    "DECODE_RAW",
    "NO_ARGUMENTS",
    "NO_COLLECTIVE",
    "NO_DURATION",
    "NO_TIME",
    "SOME_COLLECTIVE",
    "Arguments",
    "Complete",
    "ExactComplete",
    "Loose",
    "Metadata",
    "UsualComplete",
    "decode_array",
]

NO_DURATION = -1.0

NO_COLLECTIVE = Raw(b"")
"""Stands where an event names no collective."""

SOME_COLLECTIVE = Raw(b'""')
"""Stands where it names one that was read already."""


class Arguments(Struct, gc=False, frozen=True):
    """The arguments that tables need of every event."""

    stream: int | str = ABSENT
    correlation: int = ABSENT
    device: int = ABSENT
    bytes: int | str = ABSENT
    collective: Raw = msgspec.field(name="Collective name", default=NO_COLLECTIVE)

    @property
    def names_collective(self) -> bool:
        """Whether the event carries the arguments of a collective."""
        return self.collective is not NO_COLLECTIVE and bytes(self.collective) != b"null"


NO_ARGUMENTS = Arguments()


class Complete(Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration; times in microseconds as written."""

    name: str
    ts: float
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    dur: float = NO_DURATION
    args: Arguments = NO_ARGUMENTS


class UsualComplete(Complete, gc=False, tag_field="ph", tag="X"):
    """The same in a file of usual categories: these are found, which is faster than to make them.

    Any other category is a ``ValidationError``.
    """

    cat: Literal[USUAL_CATEGORIES] = ""  # type: ignore[valid-type]


class ExactComplete(Struct, gc=False, tag_field="ph", tag="X"):
    """The same with the time as text, for files whose times do not fit a double."""

    name: str
    ts: Raw
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    dur: float = NO_DURATION
    args: Arguments = NO_ARGUMENTS


class MetadataArguments(Struct, gc=False, frozen=True):
    """Arguments of a metadata event: a process or thread name."""

    name: Any = None


class Metadata(Struct, gc=False, tag_field="ph", tag="M"):
    """A metadata event."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetadataArguments = MetadataArguments()


class _Met(threading.local):
    """The metadata events of the array that this thread decodes."""

    def __init__(self) -> None:
        self.events: list[Metadata] = []


_MET = _Met()


class _MetMetadata(Metadata, gc=False, tag_field="ph", tag="M"):
    """A metadata event that reports itself: looking for the few among all costs more."""

    def __post_init__(self) -> None:
        _MET.events.append(self)


class _Skipped(Struct, gc=False):
    """Flow, counter, instant, async and begin/end events: validated, nothing kept."""

    phases: ClassVar[str] = "stfiICBEbenNODPRcvVapSTF(),"


_SKIPPED = tuple(
    msgspec.defstruct(f"Skipped{code}", [], tag_field="ph", tag=phase, gc=False)
    for code, phase in enumerate(dict.fromkeys(_Skipped.phases))
)


def _union(*kinds: type[Struct]) -> Any:
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return list[union]


_USUAL = msgspec.json.Decoder(_union(UsualComplete, _MetMetadata, *_SKIPPED)).decode
_FAST = msgspec.json.Decoder(_union(Complete, _MetMetadata, *_SKIPPED)).decode
_EXACT = msgspec.json.Decoder(_union(ExactComplete, _MetMetadata, *_SKIPPED)).decode


_DECODERS = {UsualComplete: _USUAL, Complete: _FAST, ExactComplete: _EXACT}


def decode_array(
    text: memoryview, complete: type[Complete | ExactComplete]
) -> tuple[list[Struct], list[Metadata]]:
    """All events of a JSON array, and those of them that are metadata.

    Args:
        text: The array.
        complete: What complete events become.

    Raises:
        msgspec.DecodeError: If it is no JSON array, or an event has an unexpected shape or type.
    """
    _MET.events = []
    decoded: list[Struct] = _DECODERS[complete](text)
    met, _MET.events = _MET.events, []
    return decoded, met


DECODE_RAW = msgspec.json.Decoder(list[Raw]).decode
"""Cut an array into the texts of its elements; raises only when it is no JSON array."""


NO_TIME = Raw(b"null")


class Loose(Struct):
    """An event of which nothing is certain but that it is a JSON object."""

    ph: Any = None
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = NO_TIME
    dur: Any = None
    args: Any = None


DECODE_LOOSE = msgspec.json.Decoder(Loose).decode
"""Decode the text of one event whatever its types."""


class _Object(Struct):
    """Any JSON object."""


DECODE_OBJECT = msgspec.json.Decoder(_Object).decode
"""Check that a text is one JSON object."""

DECODE_ANY = msgspec.json.Decoder().decode
"""Decode any JSON text to builtin types."""
