"""MLPerf's lines: ``:::MLLOG {"time_ms": …, "key": "train_loss", "value": …, "metadata": {…}}``.

Two things in them tell of iterations: losses with the number of samples so far, whose distance in
time is that of as many iterations as their samples make; and throughput that the program printed.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from distprof.ingest.kinds.training_logs.grammar import Grammar, Row, s_to_ns

__all__ = ["MllogGrammar"]

_LINE = re.compile(rb":::MLLOG (\{[^\n]{1,20000})")
_RATES = ("throughput", "imgs_sec", "samples_per_sec", "samples_per_second")
_BREAKS = ("block_start", "block_stop", "eval_start", "eval_stop", "run_start", "run_stop")
_MAX_RATES = 100_000
_decoder = msgspec.json.Decoder()


class MllogGrammar(Grammar):
    """Reports of MLPerf's logging library."""

    _before: tuple[float, float] | None = None  # seconds and samples of the last loss

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "MLPerf logging"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b":::MLLOG",)

    def take(self, block: bytes) -> None:
        """Gather events."""
        for text in _LINE.findall(block):
            event = self._decoded(text)
            if event is not None:
                self._take_event(event)

    def _decoded(self, text: bytes) -> dict[str, Any] | None:
        """The event, without what other processes wrote behind it; None where it is broken."""
        for end in (len(text), text.rfind(b"}") + 1, text.find(b"}}") + 2):
            try:
                event = _decoder.decode(text[:end])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(event, dict):
                return event
        self.num_unknown += 1
        return None

    def _take_event(self, event: dict[str, Any]) -> None:
        key, value = event.get("key"), event.get("value")
        metadata = event.get("metadata")
        if not isinstance(metadata, dict):
            metadata = {}
        if key == "global_batch_size":
            size = _number(value)
            if size is not None and 1 <= size < 1 << 40:
                self.facts["global_batch_size"] = int(size)
        elif key in _BREAKS:
            self._before = None
        elif key == "train_loss":
            self._take_loss(event.get("time_ms"), _number(value), metadata)
        elif key == "tracked_stats" and isinstance(value, dict):
            if "train_loss" in value:
                self._take_loss(event.get("time_ms"), _number(value["train_loss"]), metadata)
            self._take_rate(value)

    def _take_rate(self, value: dict[str, Any]) -> None:
        rate = next((_number(value[name]) for name in _RATES if name in value), None)
        if rate is not None and rate > 0 and len(self.rates) < _MAX_RATES:
            self.rates.append(rate)

    def _take_loss(self, time_ms: Any, loss: float | None, metadata: dict[str, Any]) -> None:
        at, samples = _number(time_ms), _number(metadata.get("samples_count"))
        batch = self.facts.get("global_batch_size")
        if at is None or samples is None or not batch:
            return
        before = self._before
        self._before = (at / 1e3, samples)
        if before is None:
            return
        seconds, count = at / 1e3 - before[0], samples - before[1]
        if seconds <= 0 or count < batch:
            return
        span = count / batch
        self.add(
            Row(
                iteration=round(samples / batch),
                duration_ns=s_to_ns(seconds / span),
                span=round(span),
                samples_per_s=count / seconds,
                loss=loss,
            )
        )

    def finish(self) -> None:
        """Where only throughput was printed, an iteration is a batch at that rate."""
        batch = self.facts.get("global_batch_size")
        if self.rows or not self.rates or not batch:
            return
        for rate in self.rates:
            ns = s_to_ns(batch / rate)
            self.add(Row(iteration=None, duration_ns=ns, samples_per_s=rate))
        self.notes.append(
            "Times of iterations are those of a global batch at the throughput that was printed."
        )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e300 else math.inf
    return number if math.isfinite(number) else None
