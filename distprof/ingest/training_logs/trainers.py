"""Logs of trainers that report totals and losses rather than the times of iterations.

Hugging Face's Trainer, and progress bars of programs that print no times::

    {'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.01}
    {'train_runtime': 123.4, 'train_samples_per_second': 10.1, 'train_steps_per_second': 1.26, …}
     45%|████▌     | 4500/10000 [1:20:10<1:37:59, 1.07s/it]

MLPerf's lines, ``:::MLLOG {"time_ms": …, "key": "train_loss", "value": …, "metadata": {…}}``.
Losses come with the number of samples so far, so the time between two losses divided by the
iterations between them is the time of an iteration. Some programs also print throughput, and
NVIDIA's print ``train_step_time`` (mlcommons/training, ``MLPerfLoggingCallback`` and
``DeltaTimingCallback``).
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from distprof.ingest.training_logs.grammar import (
    MAX_COUNT,
    MAX_ROWS,
    NUMBER,
    Grammar,
    Row,
    s_to_ns,
    to_float,
)

_SUMMARY = re.compile(rb"\{[^{}\n]{0,400}?'train_runtime': [^{}\n]{0,800}\}")

_PAIR = re.compile(rb"'([a-z_]{1,40})': '?(" + NUMBER + rb")'?[,}]")

_BAR = re.compile(
    rb"^([^\n%|]{0,120}?)(\d{1,3})%\|[^|\n]{0,300}\| *(\d{1,12})/(\d{1,12}) "
    rb"\[(?:(\d{1,6}):)?(\d{1,2}):(\d\d)<[^,\]\n]{0,30}, *[\d.?]{1,12}(?:s/it|it/s)",
    re.MULTILINE,
)

_MAX_BARS = 100

_MIN_STEPS = 20

_MIN_SECONDS = 50
"""Bars show whole seconds: over this span, a mean is accurate to 2 %."""


class TrainerGrammar(Grammar):
    """The Trainer's summary with the mean over the whole training."""

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "Hugging Face Trainer"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"'train_runtime'",)

    def take(self, block: bytes) -> None:
        """Read summaries."""
        for text in _SUMMARY.findall(block):
            values = {name: to_float(value) for name, value in _PAIR.findall(text)}
            rate = values.get(b"train_steps_per_second")
            if not rate or rate < 0:
                self.num_unknown += 1
                continue
            self.add(
                Row(
                    iteration=None,
                    duration_ns=s_to_ns(1 / rate),
                    samples_per_s=values.get(b"train_samples_per_second"),
                    loss=values.get(b"train_loss"),
                )
            )

    def finish(self) -> None:
        """Note what the time is the mean of."""
        self.notes.append("The iteration time is the Trainer's mean over the whole training.")


class _Bar(msgspec.Struct):
    """One bar: the start of its current span, and the reports so far."""

    step: int
    second: int
    first_second: int
    last_second: int
    rows: list[Row] = msgspec.field(default_factory=list)


class BarGrammar(Grammar):
    """The longest-running bar without a label; labelled bars are downloads, maps, evaluations."""

    _bars: dict[int, _Bar] | None = None

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "a progress bar"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"s/it", b"it/s")

    def take(self, block: bytes) -> None:
        """Follow each bar."""
        if self._bars is None:
            self._bars = {}
        for before, _, step, total, hours, minutes, seconds in _BAR.findall(block):
            if int(total) < _MIN_STEPS or before.rstrip().endswith(b":"):
                continue
            second = int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
            self._follow(self._bars, int(total), int(step), second)

    def _follow(self, bars: dict[int, _Bar], total: int, step: int, second: int) -> None:
        bar = bars.get(total)
        if bar is None:
            if len(bars) < _MAX_BARS:
                bars[total] = _Bar(step, second, second, second)
            return
        if step < bar.step or second < bar.last_second:
            bar.step, bar.second, bar.last_second = step, second, second
            return
        bar.last_second = second
        span, passed = step - bar.step, second - bar.second
        if span > 0 and passed >= _MIN_SECONDS:
            if sum(len(one.rows) for one in bars.values()) < 100_000:
                ns = s_to_ns(passed / span)
                bar.rows.append(Row(iteration=step, duration_ns=ns, span=span))
            bar.step, bar.second = step, second

    def finish(self) -> None:
        """Keep the bar that ran longest."""
        bars = list((self._bars or {}).values())
        if bars:
            longest = max(bars, key=lambda bar: bar.last_second - bar.first_second)
            self.rows = longest.rows
        self.notes.append(
            "Times come from a progress bar and are means over spans of at least 50 s, so single "
            "iterations are not visible."
        )


# Lightning ----------------------------------------------------------------------------------------

_ACTION = re.compile(
    rb"^(?:\| {1,4})?([^\s|][^|\n]{0,200}?)[ \t]*\| *("
    + NUMBER
    + rb")[ \t]*\|(?: *(\d{1,12})[ \t]*\|)? *("
    + NUMBER
    + rb")[ \t]*(?:\||$)",
    re.MULTILINE,
)
"""Name, mean, number of calls (not in the first versions), total; once with tabs as well."""

_STATS = re.compile(
    rb"Profile stats for: (\S[^\n]{0,200}?)(?: rank: \d{1,7})?\n"
    rb"[^\n]{0,120}? function calls[^\n]{0,120}? in ("
    + NUMBER
    + rb") seconds[^\n]{0,20}\n(?:[^\n]{0,200}\n){0,8}? {0,12}(\d{1,12})(?:/\d{1,12})? +\d"
)

_BATCH = "run_training_batch"

_NEXT = "train_dataloader_next"

_PARTS = ("model_forward", "model_backward", "optimizer_step", "get_train_batch")
"""What the first versions list instead of a batch; the forward pass counts them."""


class LightningGrammar(Grammar):
    """Tables of Lightning's profilers: one report with the means of the whole training."""

    _means: dict[str, tuple[float | None, int]] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "Lightning's profiler"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b"Mean duration (s)", b"Profile stats for: ")

    def take(self, block: bytes) -> None:
        """Read actions: their mean times, or their total times and numbers of calls."""
        for name, mean, calls, total in _ACTION.findall(block):
            each, whole = to_float(mean), to_float(total)
            count = int(calls) if calls else round(whole / each) if whole and each else 0
            self._means[name.decode("utf-8", "replace")] = (each, count)
        for name, total, calls in _STATS.findall(block):
            seconds, count = to_float(total), int(calls)
            if seconds is not None and count:
                self._means[name.decode("utf-8", "replace")] = (seconds / count, count)

    def finish(self) -> None:
        """A batch and its loading make an iteration."""
        means = self._means
        seconds, count = means.get(_BATCH) or self._of_parts()
        if seconds is None or not count:
            return
        whole = {
            name: mean * calls / count
            for name, (mean, calls) in means.items()
            if mean is not None and calls >= count and not name.startswith("run_training")
        }
        seconds += sum(each for name, each in whole.items() if name.endswith(_NEXT))
        self.add(Row(iteration=count, duration_ns=s_to_ns(seconds), span=count))
        found = {name: s_to_ns(each) for name, each in whole.items()}
        self.add_timers({name: ns for name, ns in found.items() if ns is not None})

    def _of_parts(self) -> tuple[float | None, int]:
        """Seconds and number of batches from their parts."""
        known = {name: self._means[name] for name in _PARTS if name in self._means}
        if _PARTS[0] not in known or _PARTS[1] not in known:
            return None, 0
        count = known[_PARTS[0]][1]
        total = sum((mean or 0.0) * calls for mean, calls in known.values())
        return (total / count if count else None), count


# MLPerf -------------------------------------------------------------------------------------------

_LINE = re.compile(rb":::MLLOG (\{[^\n]{1,20000})")

_RATES = ("throughput", "imgs_sec", "samples_per_sec", "samples_per_second")

_STEP_TIME = "train_step_time"

_LOSSES = ("reduced_train_loss", "train_loss")

_BREAKS = ("block_start", "block_stop", "eval_start", "eval_stop", "run_start", "run_stop")

_MAX_RATES = 100_000

_decoder = msgspec.json.Decoder()


class MllogGrammar(Grammar):
    """Reports of MLPerf's logging library."""

    _before: tuple[float, float] | None = None  # seconds and samples of the last loss
    _steps: list[Row] = msgspec.field(default_factory=list)
    _samples: float = 0.0  # samples at the last step time

    @property
    def name(self) -> str:
        """Program that printed the log."""
        return "MLPerf logging"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """Byte strings, at least one of which is in every relevant block."""
        return (b":::MLLOG",)

    def take(self, block: bytes) -> None:
        """Read events."""
        for text in _LINE.findall(block):
            event = self._decoded(text)
            if event is not None:
                self._take_event(event)

    def _decoded(self, text: bytes) -> dict[str, Any] | None:
        """The event, without output of other processes after it; None if it is broken."""
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
        elif key in _RATES:
            self._take_rate({str(key): value})
        elif key == "tracked_stats" and isinstance(value, dict):
            if _STEP_TIME in value:
                self._take_step(value, metadata)
            elif "train_loss" in value:
                self._take_loss(event.get("time_ms"), _number(value["train_loss"]), metadata)
            self._take_rate(value)

    def _take_step(self, value: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Read the time of a step in seconds, either of the last step or as a mean of several.

        ``samples_count`` counts from the start of the job or from the last report.
        """
        seconds, samples = _number(value[_STEP_TIME]), _number(metadata.get("samples_count"))
        ns = None if seconds is None else s_to_ns(seconds)
        if ns is None or len(self._steps) >= MAX_ROWS:
            return
        batch = self.facts.get("global_batch_size")
        number = _count(samples / batch) if batch and samples else None
        is_total = samples is not None and samples > self._samples
        self._samples = samples if samples is not None else self._samples
        self._steps.append(
            Row(
                iteration=number if is_total else None,
                duration_ns=ns,
                span=None if is_total else number,
                samples_per_s=batch / seconds if batch and seconds else None,
                loss=next((_number(value[name]) for name in _LOSSES if name in value), None),
            )
        )

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
                iteration=_count(samples / batch),
                duration_ns=s_to_ns(seconds / span),
                span=_count(span),
                samples_per_s=count / seconds,
                loss=loss,
            )
        )

    def finish(self) -> None:
        """Use the times of steps, if there are any.

        If only throughput was printed, the time of an iteration is that of a batch at that rate.
        """
        if self._steps:
            self.rows = self._steps
            return
        batch = self.facts.get("global_batch_size")
        if self.rows or not self.rates or not batch:
            return
        for rate in self.rates:
            ns = s_to_ns(batch / rate)
            self.add(Row(iteration=None, duration_ns=ns, samples_per_s=rate))
        self.notes.append(
            "Iteration times are the time of a global batch at the printed throughput."
        )


def _count(value: float | None) -> int | None:
    """A number of iterations; None if it is not valid."""
    return round(value) if value is not None and 0 <= value < MAX_COUNT else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e300 else math.inf
    return number if math.isfinite(number) else None
