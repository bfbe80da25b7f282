"""What ``distprof check`` writes into a baseline: accepted runs and acknowledged losses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.cli.output import check_free, note
from distprof.errors import UsageError

if TYPE_CHECKING:
    from distprof.verbs.gate.repeats import Sizes

__all__ = ["accept_loss", "accept_runs", "assigned", "check_writable", "metric_names"]


def metric_names() -> str:
    """Every metric, for people."""
    from distprof.verbs.gate.metrics import METRICS

    return ", ".join(metric.name for metric in METRICS)


def assigned(text: str) -> tuple[str, float]:
    """``METRIC=VALUE`` as it was typed.

    Raises:
        UsageError: If it is none.
    """
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise UsageError(f"{text!r} is no METRIC=VALUE such as step_time=0.03") from None


def check_writable(file: str) -> None:
    """Refuse, before any work, a baseline that could not be written.

    Raises:
        UsageError: With what is wrong about its place.
    """
    if not Path(file).exists():
        check_free(file, force=False)
    elif Path(file).is_dir() or not os.access(Path(file).resolve().parent, os.W_OK):
        raise UsageError(f"{file} cannot be written: choose another place")


def accept_loss(file: str, typed: str, *, reason: str, until: str | None, quiet: bool) -> None:
    """Write a loss that is accepted into a baseline.

    Args:
        file: The baseline.
        typed: ``METRIC=LOSS``.
        reason: Why.
        until: Last day on which it is, ``YYYY-MM-DD``; None for no end.
        quiet: Say nothing.

    Raises:
        InputError: If the baseline cannot be read.
        UsageError: If the loss is none that can be accepted.
    """
    from distprof.artefacts.baseline_file import Acknowledged
    from distprof.documents.saved import write_atomically
    from distprof.verbs.gate.baseline import acknowledge, baseline_json, read_baseline

    metric, loss = assigned(typed)
    accepted = Acknowledged(metric=metric, up_to=loss, reason=reason, until_ns=_end_of(until))
    baseline = read_baseline(file)
    check_writable(file)
    try:
        changed = acknowledge(baseline, accepted)
    except ValueError as error:
        raise UsageError(str(error)) from error
    write_atomically(Path(file), baseline_json(changed))
    ends = f" until {until}" if until else ""
    note(f"Wrote {file}: {metric} may lose {100 * loss:g} %{ends}", quiet=quiet)


def _end_of(day: str | None) -> int | None:
    """The end of that day, ns since the epoch."""
    if day is None:
        return None
    import datetime as dt

    try:
        after = dt.date.fromisoformat(day) + dt.timedelta(days=1)
    except (ValueError, OverflowError):
        raise UsageError(f"{day!r} is no day such as 2027-01-31") from None
    return int(dt.datetime.combine(after, dt.time(), dt.UTC).timestamp()) * 1_000_000_000


def accept_runs(file: str, sizes: Sizes, *, window: int, quiet: bool) -> None:
    """Accept runs: as a new session of a baseline, or as a new baseline.

    Args:
        file: The baseline; it need not exist.
        sizes: The runs, which are alike.
        window: Sessions that are kept.
        quiet: Say nothing.

    Raises:
        InputError: If the baseline cannot be read or written.
    """
    from distprof.documents.saved import write_atomically
    from distprof.sections.table import counted
    from distprof.verbs.gate.baseline import (
        accepted,
        baseline_json,
        make_baseline,
        read_baseline,
        unlike_baseline,
    )
    from distprof.version import __version__

    small, large = sizes
    if not Path(file).exists():
        new = make_baseline(large, small, distprof_version=__version__, window=window)
        said = f"a new baseline of {counted(len(large), 'repeat')}"
    else:
        old = read_baseline(file)
        new = accepted(old, large, small, distprof_version=__version__, window=window)
        wrong = unlike_baseline(old, large, small)
        said = f"{len(new.sessions)} of {new.window} sessions"
        if wrong:
            said += f"; it begins anew, since {wrong[0]}"
    write_atomically(Path(file), baseline_json(new))
    note(f"Wrote {file}: {said}", quiet=quiet)
