"""Lines of Megatron-LM and DeepSpeed: reports on iterations, timers and arguments.

Megatron-LM, whose timers have an old and a new format. It divides them by the iterations since its
last report, so they are times per iteration. Ranks may share a terminal, so output of other ranks
before or after a report is ignored::

     iteration       20/    1000 | elapsed time per iteration (ms): 1354.9 | …
    time (ms) | forward-compute: 306.62 | forward-recv: 527.58 | …
    (min, max) time across ranks (ms):
        forward-compute ................................: (306.62, 310.00)
      pipeline_model_parallel_size .................... 4

DeepSpeed: steps of its pipeline engine, its throughput timer, and its breakdown::

    steps: 10 loss: 4.5012 iter time (s): 0.470 samples/sec: 8.505
    epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.1, CurrSamplesPerSec=12.3, …
    [… [Rank 0] rank=0 time (ms) | fwd: 21.10 | bwd: 40.02 | step: 9.11
"""

from __future__ import annotations

import re

import msgspec

from distprof.ingest.training_logs.grammar import (
    NUMBER,
    Grammar,
    Row,
    ms_to_ns,
    s_to_ns,
    to_float,
    to_int,
)

_ITERATION = re.compile(rb"iteration[ =]+(\d{1,15})/ *(\d{1,15}) \|([^\n]{0,4000})")

_FIELD = re.compile(rb"\| *([A-Za-z][\w ()/.-]{1,60}?) *[:=] *(" + NUMBER + rb")(?=[ |\n]|$)")

_MEGATRON_TIMERS = re.compile(
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

_MEGATRON_WORLD = re.compile(rb"using world size: (\d{1,9}),")

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

_SPREAD = "Each timer shows the slowest rank, which may differ between timers."


class MegatronGrammar(Grammar):
    """Reports of Megatron-LM and programs derived from it."""

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "Megatron-LM"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
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
        """Read reports and timers in the order of the log."""
        self._take_facts(block)
        found = [
            *_ITERATION.finditer(block),
            *(m for m in _MEGATRON_TIMERS.finditer(block) if not _is_deepspeeds(block, m.start())),
            *_ACROSS.finditer(block),
        ]
        for match in sorted(found, key=lambda match: match.start()):
            if match.re is _ITERATION:
                self._take_iteration(match)
            elif match.re is _MEGATRON_TIMERS:
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
            self.facts["global_batch_size"] = int(batch)  # keep the last one, as it may grow

    def _take_facts(self, block: bytes) -> None:
        for name, value in _ARGUMENT.findall(block) if b" ..." in block else ():
            if name in _ARGUMENTS:
                self.facts.setdefault(_ARGUMENTS[name], int(value))
            elif name == _VIRTUAL:
                self.facts.setdefault("virtual_stages", int(value))
        for value in _MEGATRON_WORLD.findall(block):
            self.facts["world_size"] = int(value)
        for axis, value in _SIZES.findall(block) if b"using world size: " in block else ():
            self.facts[_AXES[axis]] = int(value)
        for value in _BATCHES.findall(block):
            self.facts["num_micro_batches"] = int(value)


def _is_deepspeeds(block: bytes, start: int) -> bool:
    """Whether timers follow ``rank=0`` or ``[Rank 0]``, as DeepSpeed prints them."""
    before, names = block[max(start - 16, 0) : start], block[start : start + 40]
    return before.endswith(b"] ") or b"rank=" in before or b"forward_microstep" in names


def _named(pairs: list[tuple[bytes, bytes]]) -> dict[str, int]:
    """Name of each timer to its ns."""
    found = {name.decode("ascii", "replace"): ms_to_ns(to_float(ms)) for name, ms in pairs}
    return {name: ns for name, ns in found.items() if ns is not None}


# DeepSpeed ----------------------------------------------------------------------------------------

_STEPS = re.compile(
    rb"steps: (\d{1,15}) loss: (\S{1,30}) iter time \(s\): ("
    + NUMBER
    + rb") samples/sec: (\S{1,30})"
)

_RATE = re.compile(
    rb"global_step=(\d{1,15}), RunningAvgSamplesPerSec=(\S{1,40}), CurrSamplesPerSec=(\S{1,40}),"
)

_DEEPSPEED_TIMERS = re.compile(
    rb"(?:(?:rank=\d{1,6}|\[Rank \d{1,6}\]) |(?=time \(ms\) \| *forward_microstep:))time \(ms\) "
    rb"((?:\| *[A-Za-z][\w/.-]{0,60}: *" + NUMBER + rb" *)+)"
)

_BATCH = re.compile(rb"train_batch_size \.{3,60} (\d{1,12})")

_WHOLE_STEP = {"fwd", "bwd", "step"}
"""Timers of the breakdown that add up to a step; the others are parts of them."""

_WHOLE_MICRO_STEP = {f"{name}_microstep" for name in _WHOLE_STEP}

_MICRO_NOTE = "The log has no times of whole steps: an iteration is a micro-batch."

_DEEPSPEED_WORLD = re.compile(rb"world_size \.{3,60} (\d{1,9})")

_NOTE = (
    "DeepSpeed's timers cover one iteration, one micro-batch or the time since the last report, "
    "so distprof computes no shares from them."
)


class DeepSpeedGrammar(Grammar):
    """Reports of DeepSpeed's engines; without any, the breakdown of each step is its report."""

    _is_of_timers: bool = False
    _micro_steps: list[dict[str, int]] = msgspec.field(default_factory=list)

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "DeepSpeed"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"iter time (s):", b"CurrSamplesPerSec=", b"train_batch_size ..", b"] time (ms) |",
                b"rank=0 time (ms) |", b"forward_microstep: ")  # fmt: skip

    def take(self, block: bytes) -> None:
        """Read reports and timers in the order of the log."""
        for value in _BATCH.findall(block):
            self.facts["global_batch_size"] = int(value)
        for value in _DEEPSPEED_WORLD.findall(block):
            self.facts["world_size"] = int(value)
        found = [
            *_STEPS.finditer(block),
            *_RATE.finditer(block),
            *_DEEPSPEED_TIMERS.finditer(block),
        ]
        for match in sorted(found, key=lambda match: match.start()):
            if match.re is _DEEPSPEED_TIMERS:
                self._take_timers(match[1])
            elif match.re is _STEPS:
                self._take_steps(match)
            elif self._is_of_timers:
                rate = to_float(match[3])
                self.rows[-1] = self.rows[-1]._replace(
                    iteration=to_int(match[1]), samples_per_s=rate
                )
            else:
                self.add(Row(iteration=to_int(match[1]), samples_per_s=to_float(match[3])))

    def _take_steps(self, match: re.Match[bytes]) -> None:
        if self._is_of_timers:
            self._is_of_timers = False
            self.rows.clear()
            self.timers.clear()
        self.add(
            Row(
                iteration=to_int(match[1]),
                duration_ns=s_to_ns(to_float(match[3])),
                samples_per_s=to_float(match[4]),
                loss=to_float(match[2]),
            )
        )

    def _take_timers(self, text: bytes) -> None:
        pairs = ((name, ms_to_ns(to_float(ms))) for name, ms in _TIMER.findall(text))
        timers = {_today(n.decode("ascii", "replace")): ns for n, ns in pairs if ns is not None}
        if not self.rows or self._is_of_timers:
            if timers.keys() >= _WHOLE_MICRO_STEP and len(self._micro_steps) < _MAX_MICRO_STEPS:
                self._micro_steps.append(timers)
            if not timers.keys() >= _WHOLE_STEP:
                return
            self._is_of_timers = True
            self.add(Row(iteration=None, duration_ns=sum(timers[name] for name in _WHOLE_STEP)))
        self.add_timers(timers)
        if _NOTE not in self.notes:
            self.notes.append(_NOTE)

    def finish(self) -> None:
        """Without times of whole steps, micro-batches are the iterations."""
        if self.rows or len(self._micro_steps) < _FEWEST_MICRO_STEPS:
            return
        for timers in self._micro_steps:
            ns = sum(timers[name] for name in _WHOLE_MICRO_STEP)
            self.add(Row(iteration=None, duration_ns=ns))
            self.add_timers(timers)
        self.notes.append(_MICRO_NOTE)


_MAX_MICRO_STEPS = 100_000

_FEWEST_MICRO_STEPS = 3


def _today(name: str) -> str:
    """Present name of a timer: before 2023, ``fwd`` was ``forward``."""
    return name.replace("forward", "fwd").replace("backward", "bwd")
