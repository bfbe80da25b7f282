"""Unit constants, the only functions that format numbers as text, and number types of options.

Values from a trace stay int64 nanoseconds and bytes until a reporter shows them.
Bandwidths and byte counts use decimal prefixes (1 GB = 1e9 B), as nccl-tests does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from string import Formatter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MOST_COLLECTIVES = 20_000_000
"""Collectives of all ranks that are compared. They take 3.3 GB, and the what-if 0.5 GB more."""

MOST_RANKS = 1_000_000
"""Upper bound of options for ranks or nodes of a job; a larger number is a mistake."""

_LEAST_SHOWN = 0.01
_ROUNDED_UP = 0.9995  # at or above this, three digits round to 1.00: 999.9 µs is 1.00 ms
_DURATION_UNITS = ((3_600 * NS_PER_S, "h"), (NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))
_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s?(ns|us|µs|ms|s)")
_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, **dict.fromkeys("s秒초с", NS_PER_S),
             **dict.fromkeys(("ms", "msec", "milliseconds", "мс", "毫秒"), NS_PER_MS),
             **dict.fromkeys("m分분м", 60 * NS_PER_S), **dict.fromkeys("d天", 86_400 * NS_PER_S),
             **dict.fromkeys((*"h小个시時ч", "stunde", "stunden"), 3_600 * NS_PER_S)}  # fmt: skip


def parse_duration(text: str) -> int | None:
    """A positive time with its unit, such as ``30.5ms``, in ns; None if it is none."""
    match = _TIME.fullmatch(text.strip())
    return round(float(match[1]) * _UNITS_NS[match[2]]) or None if match else None


def seconds_in(unit: str) -> float:
    """Seconds in a unit of time as people write it, in lower case: ``ms``, ``mins``, ``小时``."""
    return (_UNITS_NS.get(unit) or _UNITS_NS[unit[0]]) / NS_PER_S


def format_duration(ns: float | None) -> str:
    """A duration with three significant digits, for example ``12.3 ms``; ``–`` for None."""
    return _scaled(ns, _DURATION_UNITS, "ns")


def _scaled(value: float | None, units: Sequence[tuple[int, str]], least: str) -> str:
    if value is None:
        return "–"
    for size, unit in units:
        if abs(value) >= _ROUNDED_UP * size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f} {least}"


def capitalized(text: str) -> str:
    """The text with a capital first letter, unless its first word is a name with others inside."""
    first = text.partition(" ")[0]
    is_word = (first[1:].islower() and not {*"_=/.:"} & {*first[:-1]}) or len(text) < 2
    return text[:1].upper() + text[1:] if is_word or not text[:1].isalpha() else text


def signed(ns: float | None) -> str:
    """A change of time with its sign, for example ``+78.0 ms``; ``–`` for None."""
    if ns is None:
        return "–"
    return f"{'+' if ns >= 0 else '−'}{format_duration(abs(ns))}"


def signed_ratio(ratio: float) -> str:
    """A ratio that may be negative, as a percentage, for example ``−1.16 %``."""
    return format_ratio(ratio) if ratio >= 0 else f"−{format_ratio(-ratio)}"


def format_bytes(count: float | None) -> str:
    """A byte count with decimal prefix, for example ``16.8 MB``; ``–`` for None."""
    return _scaled(count, _BYTE_UNITS, "B")


def format_bandwidth(bytes_per_s: float | None) -> str:
    """A bandwidth in GB/s (1e9 B/s), for example ``187 GB/s``; ``–`` for None."""
    if bytes_per_s is None:
        return "–"
    if 0 < bytes_per_s < _LEAST_SHOWN * 1e9:
        return f"< {_LEAST_SHOWN} GB/s"
    return f"{_three_digits(bytes_per_s / 1e9)} GB/s"


def format_flop(count: float) -> str:
    """For example ``312 TFLOP``."""
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {prefix}FLOP"
    return f"{count:.3g} FLOP"


def format_energy(joules: float) -> str:
    """For example ``1.2 kJ``."""
    for unit, size in (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0)):
        if joules >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules * 1e3:.3g} mJ"


def format_ratio(ratio: float | None) -> str:
    """A ratio as a percentage, for example ``15.6 %``; ``–`` for None."""
    if ratio is None:
        return "–"
    if 0 < 100 * ratio < _LEAST_SHOWN:
        return f"< {_LEAST_SHOWN} %"
    return f"{_three_digits(100 * ratio)} %" if ratio else "0 %"


class _Filled(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return _FORMS[format_spec](value) if format_spec in _FORMS else format(value, format_spec)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "time": format_duration,
    "share": format_ratio,
    "bytes": format_bytes,
    "speed": format_bandwidth,
}


def fill(sentence: str, **values: Any) -> str:
    """A sentence with its values: ``{x:time}`` in ns, ``{x:share}`` of 1, ``bytes``, ``speed``."""
    return _Filled().vformat(sentence, (), values)


def sentence(table: Mapping[str, str], name: str, /, **values: Any) -> str:
    """A sentence of a table, with its values as :func:`fill` writes them."""
    return fill(table[name], **values)


def format_parts(parts_ns: Sequence[float]) -> tuple[list[str], str]:
    """Durations and their sum in one unit, rounded so that the shown parts add up to the shown sum.

    If the rounded parts do not add up, the largest ones change by one unit of their last digit, so
    small parts look the same as elsewhere.
    """
    total = sum(parts_ns)
    size, unit = next((u for u in _DURATION_UNITS if abs(total) >= u[0]), (1, "ns"))
    digits = abs(total) / size
    decimals = 0 if size == 1 or digits >= 999.5 else 1 if digits >= 99.95 else 2
    quantum = size / 10**decimals
    shown_total = round(total / quantum)
    shown = [round(part / quantum) for part in parts_ns]
    lacking = shown_total - sum(shown)
    largest_first = sorted(range(len(parts_ns)), key=lambda i: -parts_ns[i])
    for i in largest_first[: abs(lacking)]:
        shown[i] += 1 if lacking > 0 else -1
    texts = [f"{value / 10**decimals:,.{decimals}f} {unit}" for value in (*shown, shown_total)]
    return texts[:-1], texts[-1]


def few_names(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first names, and how many there are beyond them, for example ``a, b and 3 more``."""
    left = len(names) - most
    return between.join(names[:most]) + (f" and {left} more" if left > 0 else "")


def verb(subjects: Sized, plural: str) -> str:
    """A verb for its subjects: ``waits`` and ``is`` for one, ``wait`` and ``are`` for more."""
    return plural if len(subjects) != 1 else "is" if plural == "are" else f"{plural}s"


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks in a sentence: ``rank 3``, ``ranks 0-3,8``."""
    distinct = set(ranks)
    return f"rank{'' if len(distinct) == 1 else 's'} {fold_ranks(distinct)}"


def fold_ranks(ranks: Iterable[int]) -> str:
    """Ranks as ranges, for example ``0-3,8``."""
    folded: list[str] = []
    ordered = sorted(set(ranks))
    first = 0
    for i, rank in enumerate(ordered):
        if i + 1 < len(ordered) and ordered[i + 1] == rank + 1:
            continue
        low = ordered[first]
        folded.append(str(low) if low == rank else f"{low}-{rank}")
        first = i + 1
    return ",".join(folded)


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def name_of_device(host: str, index: int | None, bus_id: str, uuid: str) -> str:
    """Readable name of a GPU from the best known identifier, for example ``GPU 3 of node-1``."""
    device = f"GPU {index}" if index is not None else f"GPU {bus_id or uuid}".strip()
    return f"{device} of {host}" if host else device


def finite_range(
    low: float | None = None, high: float | None = None, *, max_open: bool = False
) -> click.FloatRange:
    """A click type for finite numbers in a range; click's own range accepts "nan" and "inf"."""
    import click

    class FiniteRange(click.FloatRange):
        def convert(self, value: Any, param: Any, ctx: Any) -> Any:
            number = super().convert(value, param, ctx)
            if not math.isfinite(number):
                self.fail(f"{value!r} is not a finite number.", param, ctx)
            return number

    return FiniteRange(low, high, max_open=max_open)


_COUNTED = re.compile("(epoch|report|round|episode|[a-z]+ation|game|rollout|cycle|trial|sweep)s$")


def unit_of(origin: str) -> str:
    """What the times of a log are those of, by its origin."""
    counted = _COUNTED.search(origin)
    return "iteration" if counted is None else counted[1]
