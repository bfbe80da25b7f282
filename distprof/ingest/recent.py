"""The last steps of a job whose collectives are too many to be compared at once.

Ranks are compared in one process, which keeps about 165 bytes for each collective of each rank. A
job with more of them than a limit is analysed as if its recording had begun later, at the same step
on every rank. Each rank is cut where it is read, so no process ever holds more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.run.run import RECENT_STEPS, Gap, Rank, TableSource
from distprof.run.tables import RankTables
from distprof.schema import Table


class RecentTables(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of another :class:`~distprof.run.run.TableSource` from a time on."""

    source: TableSource  # All rows.
    since_ns: int  # Time from which rows are kept, by their start.
    steps: Table  # Steps from then on.
    collectives: Table | None  # Collectives from then on; None to load them with the other tables.
    num_steps: int  # Steps of the whole recording.
    num_collectives: int  # Collectives of the whole recording.

    @property
    def path(self) -> str:
        """The cache file that holds all rows, empty for memory."""
        return self.source.path

    def light(self) -> RecentTables:
        """A copy without collectives in memory: its receiver reads them from disk."""
        return replace(self, collectives=None)

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """Read the tables."""
        tables = self.source.load(every_host_row=every_host_row)
        collectives = self.collectives
        if collectives is None:
            collectives = _since(tables.collectives, self.since_ns)
        return replace(
            tables,
            activity=_since(tables.activity, self.since_ns),
            host=_since(tables.host, self.since_ns),
            collectives=collectives,
            steps=self.steps,
        )


def recent_part(rank: Rank, most: int) -> Rank:
    """A rank from the first step on after which it has at most ``most`` collectives.

    A rank that has no more stays as it is; at least one step is kept.
    """
    too_many = len(rank.collectives) - most
    if too_many <= 0 or len(rank.steps) < 2:
        return rank
    earliest = rank.collectives["start_ns"][too_many]
    step = int(np.searchsorted(rank.steps["start_ns"], earliest, side="left"))
    return _from_step(rank, min(step, len(rank.steps) - 1))


def same_steps(ranks: Sequence[Rank]) -> tuple[tuple[Rank, ...], Gap | None]:
    """The ranks, from the same step on if any of them was cut, and a gap that says so."""
    cut = [rank for rank in ranks if isinstance(rank.tables, RecentTables)]
    if not cut:
        return tuple(ranks), None
    first = max(int(rank.steps["step"][0]) for rank in cut)
    kept = tuple(_from_number(rank, first) for rank in ranks)
    sources = [rank.tables for rank in cut if isinstance(rank.tables, RecentTables)]
    num_steps = max(source.num_steps for source in sources)
    left = max(len(rank.steps) for rank in kept if isinstance(rank.tables, RecentTables))
    recorded = sum(source.num_collectives for source in sources)
    which = f"{left:,} of {num_steps:,} steps are" if left > 1 else f"of {num_steps:,} steps is"
    message = (
        f"Only the last {which} analysed, because the ranks recorded {recorded:,} collectives: "
        "--max-collectives raises the limit, and --ranks reads fewer ranks."
    )
    return kept, Gap(what=RECENT_STEPS, message=message)


def _from_number(rank: Rank, number: int) -> Rank:
    """A rank from the first step on whose number is at least ``number``."""
    later = np.flatnonzero(rank.steps["step"] >= number)
    return _from_step(rank, int(later[0])) if len(later) and later[0] else rank


def _from_step(rank: Rank, index: int) -> Rank:
    """A rank from a row of its steps on."""
    source = rank.tables
    cut = source if isinstance(source, RecentTables) else None
    steps = rank.steps.take(slice(index, None))
    since_ns = int(steps["start_ns"][0])
    collectives = _since(rank.collectives, since_ns).compact()
    tables = RecentTables(
        source=cut.source if cut else getattr(source, "light", lambda: source)(),
        since_ns=since_ns,
        steps=steps,
        collectives=collectives,
        num_steps=cut.num_steps if cut else len(rank.steps),
        num_collectives=cut.num_collectives if cut else len(rank.collectives),
    )
    return replace(
        rank, capture_start_ns=since_ns, steps=steps, collectives=collectives, tables=tables
    )


def _since(table: Table, since_ns: int) -> Table:
    return table.take(table["start_ns"] >= since_ns)
