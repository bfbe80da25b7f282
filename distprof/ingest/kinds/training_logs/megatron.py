"""Megatron-LM's lines: iterations, timers in their old and their present form, arguments.

::

     iteration       20/    1000 | elapsed time per iteration (ms): 1354.9 | …
    time (ms) | forward-compute: 306.62 | forward-recv: 527.58 | …
    (min, max) time across ranks (ms):
        forward-compute ................................: (306.62, 310.00)
      pipeline_model_parallel_size .................... 4

Megatron divides timers by the iterations since its last report, so they are of one iteration.
Ranks write to one terminal: what another wrote before or behind a report is left aside.
"""

from __future__ import annotations

import re

from distprof.ingest.kinds.training_logs.grammar import (
    NUMBER,
    Grammar,
    Row,
    ms_to_ns,
    to_float,
    to_int,
)

__all__ = ["MegatronGrammar"]

_ITERATION = re.compile(rb"iteration[ =]+(\d{1,15})/ *(\d{1,15}) \|([^\n]{0,4000})")
_FIELD = re.compile(rb"\| *([A-Za-z][\w ()/.-]{1,60}?) *[:=] *(" + NUMBER + rb")(?=[ |\n]|$)")
_TIMERS = re.compile(
    rb"time \(ms\) "
    rb"((?:\| *[A-Za-z][\w/.-]{0,60}: *" + NUMBER + rb" *)+)"
)
_TIMER = re.compile(rb"\| *([A-Za-z][\w/.-]{0,60}): *(" + NUMBER + rb")")
_ACROSS = re.compile(
    rb"max\)? time across ranks \(ms\):((?:\n? +[A-Za-z][\w/.-]{0,60} \.+: "
    rb"(?:\([\d.]{1,20}, [\d.]{1,20}\)|[\d.]{1,20}))+)"
)
_ACROSS_TIMER = re.compile(rb"([A-Za-z][\w/.-]{0,60}) \.+: (?:\([\d.]+, ([\d.]+)\)|([\d.]+))")
_ARGUMENT = re.compile(rb"^[ \t]*([a-z_]{3,50}) \.{3,60} (\d{1,12})[ \t]*$", re.MULTILINE)
_WORLD = re.compile(rb"using world size: (\d{1,9}),")
_SIZES = re.compile(rb"(data|tensor-model|pipeline-model)-parallel[- ]size: (\d{1,9})")
_BATCHES = re.compile(rb"setting number of micro-?batches to constant (\d{1,9})")

_ARGUMENTS = {
    b"world_size": "world_size",
    b"micro_batch_size": "micro_batch_size",
    b"global_batch_size": "global_batch_size",
    b"seq_length": "sequence_length",
    b"tensor_model_parallel_size": "tp",
    b"pipeline_model_parallel_size": "pp",
    b"data_parallel_size": "dp",
    b"context_parallel_size": "cp",
    b"expert_model_parallel_size": "ep",
}
_VIRTUAL = b"virtual_pipeline_model_parallel_size"
_AXES = {b"data": "dp", b"tensor-model": "tp", b"pipeline-model": "pp"}
_SPREAD = "Timers are those of the slowest rank, each timer of its own."


class MegatronGrammar(Grammar):
    """Reports of Megatron-LM and of programs made from it."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "Megatron-LM"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (
            b"elapsed time per iteration",
            b"elapsed_time_per_iteration",
            b"time (ms) |",
            b"time across ranks (ms)",
            b"_parallel_size ..",
            b"_batch_size ..",
            b"using world size: ",
            b"number of micro",
        )

    def take(self, block: bytes) -> None:
        """Gather reports and timers as they come."""
        self._take_facts(block)
        found = [
            *_ITERATION.finditer(block),
            *(m for m in _TIMERS.finditer(block) if not _is_deepspeeds(block, m.start())),
            *_ACROSS.finditer(block),
        ]
        for match in sorted(found, key=lambda match: match.start()):
            if match.re is _ITERATION:
                self._take_iteration(match)
            elif match.re is _TIMERS:
                self.add_timers(_named(_TIMER.findall(match[1])))
            else:
                pairs = [(name, many or one) for name, many, one in _ACROSS_TIMER.findall(match[1])]
                self.add_timers(_named(pairs))
                if self.rows and not self.is_of_slowest_ranks:
                    self.is_of_slowest_ranks = True
                    self.notes.append(_SPREAD)

    def _take_iteration(self, match: re.Match[bytes]) -> None:
        fields: dict[str, float | None] = {}
        for name, value in _FIELD.findall(b"|" + match[3]):
            key = name.decode("ascii", "replace").lower().replace("_", " ").strip()
            fields.setdefault(key, to_float(value))
        ms = fields.get("elapsed time per iteration (ms)")
        ns = ms_to_ns(fields.get("elapsed time per iteration ms") if ms is None else ms)
        if ns is None:
            self.num_unknown += 1
            return
        batch = fields.get("global batch size")
        self.add(
            Row(
                iteration=to_int(match[1]),
                duration_ns=ns,
                samples_per_s=batch / (ns / 1e9) if batch and ns else None,
                tflops=fields.get("throughput per gpu (tflop/s/gpu)") or fields.get("tflops"),
                loss=fields.get("lm loss"),
            )
        )
        if batch and batch.is_integer() and batch < 1 << 31:
            self.facts["global_batch_size"] = int(batch)  # of the last: it may grow

    def _take_facts(self, block: bytes) -> None:
        for name, value in _ARGUMENT.findall(block) if b" ..." in block else ():
            if name in _ARGUMENTS:
                self.facts.setdefault(_ARGUMENTS[name], int(value))
            elif name == _VIRTUAL:
                self.facts.setdefault("virtual_stages", int(value))
        for value in _WORLD.findall(block):
            self.facts["world_size"] = int(value)
        for axis, value in _SIZES.findall(block) if b"using world size: " in block else ():
            self.facts[_AXES[axis]] = int(value)
        for value in _BATCHES.findall(block):
            self.facts["num_micro_batches"] = int(value)


def _is_deepspeeds(block: bytes, start: int) -> bool:
    """Whether timers follow ``rank=0`` or ``[Rank 0]``: those are another program's."""
    before = block[max(start - 16, 0) : start]
    return before.endswith(b"] ") or b"rank=" in before


def _named(pairs: list[tuple[bytes, bytes]]) -> dict[str, int]:
    """Timers in ns by name."""
    found = {name.decode("ascii", "replace"): ms_to_ns(to_float(ms)) for name, ms in pairs}
    return {name: ns for name, ns in found.items() if ns is not None}
