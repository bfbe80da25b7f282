"""DeepSpeed's lines: steps of its pipeline engine, its throughput timer, its breakdown.

::

    steps: 10 loss: 4.5012 iter time (s): 0.470 samples/sec: 8.505
    epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.1, CurrSamplesPerSec=12.3, …
    [… [Rank 0] rank=0 time (ms) | fwd: 21.10 | bwd: 40.02 | step: 9.11
"""

from __future__ import annotations

import re

from distprof.ingest.kinds.training_logs.grammar import (
    NUMBER,
    Grammar,
    Row,
    ms_to_ns,
    s_to_ns,
    to_float,
    to_int,
)

__all__ = ["DeepSpeedGrammar"]

_STEPS = re.compile(
    rb"steps: (\d{1,15}) loss: (\S{1,30}) iter time \(s\): ("
    + NUMBER
    + rb") samples/sec: (\S{1,30})"
)
_RATE = re.compile(
    rb"global_step=(\d{1,15}), RunningAvgSamplesPerSec=(\S{1,40}), CurrSamplesPerSec=(\S{1,40}),"
)
_TIMERS = re.compile(
    rb"(?:rank=\d{1,6}|\[Rank \d{1,6}\]) time \(ms\) "
    rb"((?:\| *[A-Za-z][\w/.-]{0,60}: *" + NUMBER + rb" *)+)"
)
_TIMER = re.compile(rb"\| *([A-Za-z][\w/.-]{0,60}): *(" + NUMBER + rb")")
_BATCH = re.compile(rb"train_batch_size \.{3,60} (\d{1,12})")
_WORLD = re.compile(rb"world_size \.{3,60} (\d{1,9})")
_NOTE = (
    "DeepSpeed's timers are as printed, of an iteration, a micro-batch or all since its last "
    "report: no shares are made of them."
)


class DeepSpeedGrammar(Grammar):
    """Reports of DeepSpeed's engines."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "DeepSpeed"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b"iter time (s):", b"CurrSamplesPerSec=", b"train_batch_size ..", b"] time (ms) |",
                b"rank=0 time (ms) |")  # fmt: skip

    def take(self, block: bytes) -> None:
        """Gather reports and timers as they come."""
        for value in _BATCH.findall(block):
            self.facts["global_batch_size"] = int(value)
        for value in _WORLD.findall(block):
            self.facts["world_size"] = int(value)
        found = [*_STEPS.finditer(block), *_RATE.finditer(block), *_TIMERS.finditer(block)]
        for match in sorted(found, key=lambda match: match.start()):
            if match.re is _TIMERS:
                self._take_timers(match[1])
            elif match.re is _STEPS:
                self._take_steps(match)
            else:
                self.add(Row(iteration=to_int(match[1]), samples_per_s=to_float(match[3])))

    def _take_steps(self, match: re.Match[bytes]) -> None:
        self.add(
            Row(
                iteration=to_int(match[1]),
                duration_ns=s_to_ns(to_float(match[3])),
                samples_per_s=to_float(match[4]),
                loss=to_float(match[2]),
            )
        )

    def _take_timers(self, text: bytes) -> None:
        if not self.rows:
            return
        pairs = ((name, ms_to_ns(to_float(ms))) for name, ms in _TIMER.findall(text))
        self.add_timers({n.decode("ascii", "replace"): ns for n, ns in pairs if ns is not None})
        if _NOTE not in self.notes:
            self.notes.append(_NOTE)
