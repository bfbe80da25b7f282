"""One line per step, as small training programs print them, and torchtitan.

::

    step:1/1845 train_time:73ms step_avg:73.23ms
    iter 100: loss 3.1250, time 123.45ms, mfu 34.50%
    step   10/1000 | loss 9.80 (+nanz)| norm 2.2 | 210.11 ms | 45.1% bf16 MFU | 249 tok/s
    [titan] 2026-01-01 12:00:00,123 - root - INFO - step: 10  loss: 7.9  memory: …  tps: 7,411  …
"""

from __future__ import annotations

import re

from distprof.ingest.kinds.training_logs.grammar import (
    NUMBER,
    Grammar,
    Row,
    ms_to_ns,
    stamp_s,
    to_float,
    to_int,
)

__all__ = ["IterGrammar", "SpeedrunGrammar", "TitanGrammar", "TokGrammar"]

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
    """``step:1/1845 train_time:73ms step_avg:73.23ms``: the time so far, in whole milliseconds."""

    _before: tuple[int, float] | None = None

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "a nanoGPT speedrun"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b"train_time:",)

    def take(self, block: bytes) -> None:
        """Differences of the time so far; lines of a validation repeat the step they follow."""
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
        """Say how exact it is."""
        self.notes.append(
            "Times are differences of the time so far, printed in whole milliseconds; what the "
            "program itself leaves out of it, such as validation, is left out."
        )


class IterGrammar(Grammar):
    """``iter 100: loss 3.1250, time 123.45ms, mfu 34.50%``: each line tells of one iteration."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "nanoGPT"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b"ms, mfu ", b", time ")

    def take(self, block: bytes) -> None:
        """Gather iterations."""
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
        """Whose words they are."""
        return "llm.c"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b" tok/s",)

    def take(self, block: bytes) -> None:
        """Gather steps."""
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
    """torchtitan: throughput per device; times of steps follow from those of the lines."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "torchtitan"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b"tps:", b"wps:")

    def take(self, block: bytes) -> None:
        """Gather steps; durations follow from times of lines, in :mod:`.choose`."""
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
