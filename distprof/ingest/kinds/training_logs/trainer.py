"""Hugging Face's Trainer, and progress bars, in which programs that print no times show them.

::

    {'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.01}
    {'train_runtime': 123.4, 'train_samples_per_second': 10.1, 'train_steps_per_second': 1.26, …}
     45%|████▌     | 4500/10000 [1:20:10<1:37:59, 1.07s/it]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from distprof.ingest.kinds.training_logs.grammar import NUMBER, Grammar, Row, s_to_ns, to_float

__all__ = ["BarGrammar", "TrainerGrammar"]

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
"""Bars show whole seconds: over as many, a mean is exact to two percent."""


class TrainerGrammar(Grammar):
    """The Trainer's summary: one mean over the whole training."""

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "Hugging Face Trainer"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
        return (b"'train_runtime'",)

    def take(self, block: bytes) -> None:
        """Gather summaries."""
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
        """Say what it is a mean of."""
        self.notes.append("The time of an iteration is the Trainer's mean over the whole training.")


@dataclass(slots=True)
class _Bar:
    """One bar by its total: where the present span began, and what it told so far."""

    step: int
    second: int
    first_second: int
    last_second: int
    rows: list[Row] = field(default_factory=list)


class BarGrammar(Grammar):
    """The longest bar without a name: bars with one are downloads, maps, evaluations."""

    _bars: dict[int, _Bar] | None = None

    @property
    def name(self) -> str:
        """Whose words they are."""
        return "a progress bar"

    @property
    def signs(self) -> tuple[bytes, ...]:
        """A block without any of these holds nothing of the grammar."""
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
        """Keep the bar that took longest."""
        bars = list((self._bars or {}).values())
        if bars:
            longest = max(bars, key=lambda bar: bar.last_second - bar.first_second)
            self.rows = longest.rows
        self.notes.append(
            "Times are those of a progress bar, means over spans of at least 50 s: single "
            "iterations cannot be seen."
        )
