"""Invariants of sound recordings, as data: each a count, a bound, and a sentence.

A recording that breaks one is repaired, or loses what broke it. The report's evidence line says so,
because numbers and causes may differ from those of the sound recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from distprof.run.run import Count, Gap, Rank
from distprof.units import name_ranks


class Invariant(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is true of every rank of a sound recording."""

    key: str  # Stable name, the ``what`` of the gap.
    # Few words for the evidence line. ``{count}`` and ``{of}`` are those of all ranks that break
    # it, ``{ranks}`` their names.
    fact: str
    message: str  # Sentence that says what was found and done, with the same fields.
    bound: float = 0.0  # Acceptable share of the rows that break it, 0 to 1.
    # Whether the causes of lateness of a rank that breaks it cannot be known.
    hides_cause: bool = False
    # Whether most ranks that break it once show what the program or its recorder does.
    may_be_usual: bool = False

    def is_broken(self, found: Count) -> bool:
        """Whether more rows break it than may."""
        return found.count > self.bound * found.of


INVARIANTS: Mapping[str, Invariant] = {
    one.key: one
    for one in (
        Invariant(
            key="launches-without-kernels",
            fact="{count} of {of} launches of {ranks} without a kernel",
            message="{count} of {of} kernel launches of {ranks} have no kernel in the trace, so "
            "computation is missing there: shares of the step are uncertain, and the cause of "
            "lateness is unknown.",
            bound=0.005,
            hides_cause=True,
        ),
        Invariant(
            key="kernels-without-launches",
            fact="{count} of {of} kernels of {ranks} without a launch",
            message="{count} of {of} kernels of {ranks} have no launch in the trace, although "
            "kernels before and after them have: why the GPU idles is uncertain there.",
            bound=0.02,
            hides_cause=True,
        ),
        Invariant(
            key="clock-jumps-back",
            fact="clock of {ranks} jumps back",
            message="Launches of {ranks} go back in time {count} times, in the order of their ids: "
            "the clock jumped back inside the recording, and what happened before and after it is "
            "mixed.",
            hides_cause=True,
        ),
        Invariant(
            key="repeated-activities",
            fact="{count} GPU activities of {ranks} there twice",
            message="{count} of {of} GPU activities of {ranks} are in the trace twice: distprof "
            "counts them once.",
        ),
        Invariant(
            key="impossible-durations",
            fact="{count} impossible durations on {ranks}",
            message="{count} of {of} events of {ranks} have a negative or missing duration, and "
            "count as instants.",
            hides_cause=True,
        ),
        Invariant(
            key="overlong-activities",
            fact="{count} impossible durations on {ranks}",
            message="{count} of {of} GPU activities of {ranks} last longer than the recording, or "
            "than the next ones on their stream allow: distprof ends them there.",
            hides_cause=True,
        ),
        Invariant(
            key="coarse-times",
            fact="times of {ranks} are rounded",
            message="Times of {ranks} are rounded to 10 µs or more, which profilers never do: "
            "what is shorter is uncertain.",
            hides_cause=True,
            may_be_usual=True,
        ),
        Invariant(
            key="empty-step-ends",
            fact="{count} steps of {ranks} recorded in part",
            message="In {count} of {of} steps of {ranks}, nothing is recorded after the step mark "
            "begins or before it ends: events are missing, or the mark is too long.",
            may_be_usual=True,
        ),
        Invariant(
            key="overlapping-steps",
            fact="{count} step marks of {ranks} overlap",
            message="{count} of {of} step marks of {ranks} overlap the next one: distprof ends "
            "them where it begins, so step times are uncertain.",
        ),
    )
}
"""By key. Bounds are above what undamaged real traces show."""


def broken(ranks: Iterable[Rank]) -> Iterator[Gap]:
    """A gap for each invariant that the events of one or more ranks break."""
    counted = [(rank.rank, rank.quality.counts) for rank in ranks]
    for key, invariant in INVARIANTS.items():
        found = {
            rank: counts[key]
            for rank, counts in counted
            if key in counts and invariant.is_broken(counts[key])
        }
        if found and not _is_usual(invariant, found, counted):
            yield gap_of(invariant, found)


def _is_usual(
    invariant: Invariant,
    found: Mapping[int, Count],
    counted: Sequence[tuple[int, Mapping[str, Count]]],
) -> bool:
    """Whether most ranks break it, once each: then the program or its recorder does so."""
    if not invariant.may_be_usual or any(count.of > 1 for count in found.values()):
        return False
    return 2 * len(found) > len(counted)


def gap_of(invariant: Invariant, found: Mapping[int, Count]) -> Gap:
    """The gap of an invariant that these ranks break."""
    ranks: Sequence[int] = sorted(found)
    words = {
        "count": f"{sum(one.count for one in found.values()):,}",
        "of": f"{sum(one.of for one in found.values()):,}",
        "ranks": name_ranks(ranks),
    }
    return Gap(
        what=invariant.key,
        message=invariant.message.format_map(words),
        ranks=tuple(ranks),
        fact=invariant.fact.format_map(words),
        hides_cause=invariant.hides_cause,
    )
