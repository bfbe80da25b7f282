"""Series of a training by iteration, as Megatron-LM keeps them of its tests: a JSON object.

::

    {"iteration-time": {"start_step": 1, "step_interval": 5, "values": {"1": "nan", "5": 17.1}},
     "lm loss": {…}}

Times are seconds. Values that are no numbers are counted.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from distprof.errors import InputError
from distprof.ingest.kinds.training_logs.grammar import Grammar, Row, s_to_ns
from distprof.ingest.log_files import DAMAGE, opened

__all__ = ["GoldenValues", "begins_like_golden_values"]

MAX_BYTES = 256_000_000
_SIGNS = (b'"step_interval"', b'"values"')
_TIMES = ("iteration-time", "iteration_timing_avg", "iteration-time-s")
_LOSSES = ("lm loss", "lm-loss")


def begins_like_golden_values(start: bytes) -> bool:
    """Whether a file that begins so may hold such series."""
    text = start[:4_096].lstrip()
    return text.startswith(b"{") and all(sign in text for sign in _SIGNS)


class GoldenValues(Grammar):
    """Series by iteration."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "the series of a Megatron-LM test"

    def read(self, source: str) -> None:
        """Gather all iterations.

        Raises:
            InputError: If it is no such object, or too large.
        """
        series = _decoded(source)
        times = next((series[name] for name in _TIMES if name in series), None)
        if times is None:
            _refuse(source, f"no {_TIMES[0]!r} among {', '.join(sorted(map(str, series))[:10])}")
        loss = dict(_values(next((series[n] for n in _LOSSES if n in series), None)))
        for number, value in _values(times):
            ns = s_to_ns(value)
            if ns is None:
                self.num_unknown += 1
            else:
                self.add(Row(iteration=number, duration_ns=ns, span=1, loss=loss.get(number)))
        if self.num_unknown:
            self.notes.append(f"Values that are no times are left out: {self.num_unknown:,}.")


def _values(series: Any) -> list[tuple[int, float | None]]:
    """Iterations and values, ascending; None for what is no number."""
    values = series.get("values") if isinstance(series, dict) else None
    if isinstance(values, list):
        start, step = series.get("start_step"), series.get("step_interval")
        first = start if isinstance(start, int) and 0 <= start < 1 << 40 else 0
        gap = step if isinstance(step, int) and 0 < step < 1 << 20 else 1
        values = {str(first + gap * i): value for i, value in enumerate(values)}
    if not isinstance(values, dict):
        return []
    numbers = ((key, value) for key, value in values.items() if key.isdecimal() and len(key) < 16)
    return sorted((int(key), float(value) if _is_number(value) else None) for key, value in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _decoded(source: str) -> dict[str, Any]:
    try:
        with opened(source) as stream:
            data = stream.read(MAX_BYTES + 1)
    except DAMAGE as error:
        _refuse(source, " ".join(f"{type(error).__name__}: {error}".split())[:200])
    if len(data) > MAX_BYTES:
        _refuse(source, f"more than {MAX_BYTES:,} bytes")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(source, " ".join(f"{error}".split())[:200])
    return found if isinstance(found, dict) else {}


def _refuse(source: str, found: str) -> NoReturn:
    raise InputError(
        source,
        expected='series by iteration, {"iteration-time": {"values": {"5": 17.1, …}}, …}',
        found=found,
        fix="write the file again, or check that it is whole",
    )
