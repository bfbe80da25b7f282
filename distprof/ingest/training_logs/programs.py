"""Lines of frameworks and small training programs: one report per iteration, timers, arguments.

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

Small programs, and torchtitan::

    step:1/1845 train_time:73ms step_avg:73.23ms
    iter 100: loss 3.1250, time 123.45ms, mfu 34.50%
    step   10/1000 | loss 9.80 (+nanz)| norm 2.2 | 210.11 ms | 45.1% bf16 MFU | 249 tok/s
    [titan] 2026-01-01 12:00:00,123 - root - INFO - step: 10  loss: 7.9  memory: …  tps: 7,411  …
"""

from __future__ import annotations

import re

from distprof.ingest.training_logs.grammar import (
    NUMBER,
    Grammar,
    Row,
    ms_to_ns,
    s_to_ns,
    stamp_s,
    to_float,
    to_int,
)

__all__ = [
    "DeepSpeedGrammar",
    "IterGrammar",
    "MegatronGrammar",
    "SpeedrunGrammar",
    "TitanGrammar",
    "TokGrammar",
]

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
    before = block[max(start - 16, 0) : start]
    return before.endswith(b"] ") or b"rank=" in before


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
    rb"(?:rank=\d{1,6}|\[Rank \d{1,6}\]) time \(ms\) "
    rb"((?:\| *[A-Za-z][\w/.-]{0,60}: *" + NUMBER + rb" *)+)"
)

_BATCH = re.compile(rb"train_batch_size \.{3,60} (\d{1,12})")

_WHOLE_STEP = {"fwd", "bwd", "step"}
"""Timers of the breakdown that add up to a step; the others are parts of them."""

_DEEPSPEED_WORLD = re.compile(rb"world_size \.{3,60} (\d{1,9})")

_NOTE = (
    "DeepSpeed's timers cover one iteration, one micro-batch or the time since the last report, "
    "so distprof computes no shares from them."
)


class DeepSpeedGrammar(Grammar):
    """Reports of DeepSpeed's engines; without any, the breakdown of each step is its report."""

    _is_of_timers: bool = False

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "DeepSpeed"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"iter time (s):", b"CurrSamplesPerSec=", b"train_batch_size ..", b"] time (ms) |",
                b"rank=0 time (ms) |")  # fmt: skip

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
        timers = {n.decode("ascii", "replace"): ns for n, ns in pairs if ns is not None}
        if not self.rows or self._is_of_timers:
            if not timers.keys() >= _WHOLE_STEP:
                return
            self._is_of_timers = True
            self.add(Row(iteration=None, duration_ns=sum(timers[name] for name in _WHOLE_STEP)))
        self.add_timers(timers)
        if _NOTE not in self.notes:
            self.notes.append(_NOTE)


# One line per step --------------------------------------------------------------------------------

_SPEEDRUN = re.compile(
    rb"step:(\d{1,15})/\d{1,15} ([^\n]{0,80}?)train_time:(" + NUMBER + rb")ms step_avg:"
)

_LOSS = re.compile(rb"loss:(" + NUMBER + rb")")

_ITER = re.compile(rb"iter (\d{1,15}): loss (" + NUMBER + rb"|nan), time (" + NUMBER + rb")ms")

_TOK = re.compile(
    rb"step +(\d{1,15})/\d{1,15} \|(?: train)? loss +(" + NUMBER + rb")[^\n]{0,200}?"
    rb"[|(] *(" + NUMBER + rb") ms \|[^\n]{0,60}? (" + NUMBER + rb") tok/s"
)

_ESCAPES = re.compile(rb"\x1b\[[0-9;]{0,20}m")

_TITAN = re.compile(
    rb"^([^\n]{0,300}?)step: +(\d{1,15}) +loss: +(" + NUMBER + rb"|nan)([^\n]{0,400})",
    re.MULTILINE,
)

_RANK = re.compile(rb"\[(?:rank|default)?(\d{1,6})\]:")

_TPS = re.compile(rb"(?:tps|wps): +([\d,]{1,20})")

_TFLOPS = re.compile(rb"tflops: +([\d,.]{1,20})")


class SpeedrunGrammar(Grammar):
    """``step:1/1845 train_time:73ms step_avg:73.23ms``: elapsed time in whole milliseconds."""

    _before: tuple[int, float] | None = None

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "a nanoGPT speedrun"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"train_time:",)

    def take(self, block: bytes) -> None:
        """Read differences of the elapsed time, without validation lines, which repeat a step."""
        for step, middle, total in _SPEEDRUN.findall(block):
            number, ms = int(step), to_float(total)
            loss = _LOSS.search(middle)
            if loss is not None and (number or self._before):
                continue
            before = self._before
            if ms is not None and before is not None and number > before[0] and ms >= before[1]:
                span = number - before[0]
                ns = ms_to_ns((ms - before[1]) / span)
                self.add(Row(iteration=number, duration_ns=ns, span=span))
            self._before = None if ms is None else (number, ms)

    def finish(self) -> None:
        """Note the accuracy."""
        self.notes.append(
            "Times are differences of the elapsed time, printed in whole milliseconds. They "
            "exclude what the program excludes, such as validation."
        )


class IterGrammar(Grammar):
    """``iter 100: loss 3.1250, time 123.45ms, mfu 34.50%``: each line reports one iteration."""

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "nanoGPT"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"ms, mfu ", b", time ")

    def take(self, block: bytes) -> None:
        """Read iterations."""
        for number, loss, ms in _ITER.findall(block):
            self.add(
                Row(
                    iteration=to_int(number),
                    duration_ns=ms_to_ns(to_float(ms)),
                    span=1,
                    loss=to_float(loss),
                )
            )


class TokGrammar(Grammar):
    """``step 10/1000 | loss 9.80 … | 210.11 ms | … | 249 tok/s``, as llm.c prints it."""

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "llm.c"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b" tok/s",)

    def take(self, block: bytes) -> None:
        """Read steps."""
        for number, loss, ms, rate in _TOK.findall(block):
            self.add(
                Row(
                    iteration=to_int(number),
                    duration_ns=ms_to_ns(to_float(ms)),
                    span=1,
                    tokens_per_s=to_float(rate),
                    loss=to_float(loss),
                )
            )


class TitanGrammar(Grammar):
    """torchtitan: throughput per GPU; durations follow from the times of the lines."""

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "torchtitan"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"tps:", b"wps:")

    def take(self, block: bytes) -> None:
        """Read steps; :mod:`.grammar` derives durations from the times of the lines."""
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        for before, number, loss, rest in _TITAN.findall(block):
            rate, tflops, rank = _TPS.search(rest), _TFLOPS.search(rest), _RANK.search(before)
            if rate is None:
                self.num_unknown += 1
                continue
            self.add(
                Row(
                    iteration=to_int(number),
                    tokens_per_s_per_device=to_float(rate[1]),
                    tflops=to_float(tflops[1]) if tflops else None,
                    loss=to_float(loss),
                    rank=to_int(rank[1]) if rank else None,
                    at_s=stamp_s(before),
                )
            )
