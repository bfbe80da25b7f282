"""The process group of each collective."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from distprof.ingest.collectives.sizes import MAX_RANKS
from distprof.ingest.metadata import parse_ranks
from distprof.run.topology import ProcessGroup
from distprof.schema import ABSENT, Coded, Int64Array, Table
from distprof.terms import CollectiveKind, MeshAxis, Origin
from distprof.units import fold_ranks

_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


class GroupColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The group columns of a COLLECTIVES table."""

    group: Coded
    description: Coded
    ranks: Coded
    size: NDArray[np.int32]
    origin: NDArray[np.int8]


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int = ABSENT
    origin: Origin = Origin.ABSENT


_MESSAGE_AXES = (MeshAxis.PP, MeshAxis.CP)


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that one rank belongs to."""

    groups: tuple[ProcessGroup, ...]  # Groups in the metadata; may be empty.
    world_size: int | None  # Number of ranks of the job, None if unknown.

    def only_ranks(self) -> tuple[int, ...]:
        """The set of ranks that this rank communicates with; empty if it is unclear."""
        sets = {group.ranks for group in self.groups if group.ranks and len(group.ranks) > 1}
        unknown = any(not group.ranks for group in self.groups)
        if len(sets) == 1 and not unknown:
            return next(iter(sets))
        if sets or unknown or self.world_size is None:
            return ()
        return tuple(range(self.world_size))

    def message_group(self) -> ProcessGroup | None:
        """The group in which this rank sends and receives, if it is unambiguous.

        It is the rank's only group, or the only one along an axis on which ranks exchange messages:
        pipeline stages, and the ring of context parallelism.
        """
        ranks = self.only_ranks()
        along = [group for group in self.groups if group.axis in _MESSAGE_AXES and group.ranks]
        if ranks:
            same = [group for group in self.groups if group.ranks == ranks]
            unnamed = ProcessGroup(
                name="", description="", ranks=ranks, size=len(ranks), backend="", axis=None
            )
            return same[0] if same else unnamed
        return along[0] if len({group.ranks for group in along}) == 1 else None

    def with_group(self, table: Table, rows: NDArray[np.bool_], group: ProcessGroup) -> Table:
        """The COLLECTIVES table with this group in the given rows."""
        size, origin = table["group_size"].copy(), table["group_origin"].copy()
        size[rows], origin[rows] = len(group.ranks), Origin.DERIVED
        coded = {}
        for name, text in (
            ("group", group.name),
            ("group_desc", group.description),
            ("group_ranks", fold_ranks(group.ranks)),
        ):
            column = table.coded(name)
            codes = np.where(rows, len(column.values), column.codes).astype(np.int32)
            coded[name] = Coded.merged(codes, (*column.values, text))
        return table.with_columns(group_size=size, group_origin=origin, **coded)

    def columns(self, comm_args: Table, layers: Sequence[Int64Array], count: int) -> GroupColumns:
        """Group columns of ``count`` operations."""
        named, of_row = self._named_groups(comm_args)
        codes = np.zeros(count, dtype=np.int32)  # 0: no evidence names a group
        for layer in reversed(layers):
            found = np.where(layer != ABSENT, of_row[layer] if len(of_row) else 0, 0)
            codes = np.where(found > 0, found, codes).astype(np.int32)
        groups = (self._assumed(), *named)
        return GroupColumns(
            group=Coded.merged(codes, [group.name for group in groups]),
            description=Coded.merged(codes, [group.description for group in groups]),
            ranks=Coded.merged(codes, [fold_ranks(group.ranks) for group in groups]),
            size=np.array([group.size for group in groups], dtype=np.int32)[codes],
            origin=np.array([group.origin for group in groups], dtype=np.int8)[codes],
        )

    def _named_groups(self, comm_args: Table) -> tuple[tuple[_Group, ...], NDArray[np.int32]]:
        """Distinct groups that COMM_ARGS rows name, and 1 + its group for each row, 0 without."""
        texts = [comm_args.coded(name) for name in ("group", "group_desc", "group_ranks")]
        sizes = comm_args["group_size"]
        keys = np.stack([*(text.codes.astype(np.int64) for text in texts), sizes], axis=1)
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        groups: list[_Group] = []
        numbers = np.zeros(len(distinct), dtype=np.int32)
        for index, (*codes, size) in enumerate(distinct.tolist()):
            name, description, ranks = (t.values[c] for t, c in zip(texts, codes, strict=True))
            group = self._resolve(name, description, parse_ranks(ranks), size)
            if group is not None:
                groups.append(group)
                numbers[index] = len(groups)
        return tuple(groups), numbers[which.reshape(-1)] if len(distinct) else numbers

    def _resolve(
        self, name: str, description: str, ranks: tuple[int, ...], size: int
    ) -> _Group | None:
        """The group in an event's arguments, completed from the metadata."""
        if not name and not ranks:
            return None
        listed = [group for group in self.groups if group.name == name]
        if ranks:
            listed = [group for group in listed if group.ranks in ((), ranks)]
        if len(listed) == 1:
            ranks = ranks or listed[0].ranks
            description = description or listed[0].description
        if not ranks and size == self.world_size:
            ranks = tuple(range(size))
        return _Group(
            name=name,
            description=description,
            ranks=ranks,
            size=len(ranks) or (size if 0 < size < MAX_RANKS else ABSENT),
            origin=Origin.MEASURED,
        )

    def _assumed(self) -> _Group:
        """The group assumed for operations that name none."""
        ranks = self.only_ranks()
        if not ranks:
            return _Group()
        same = [group for group in self.groups if group.ranks == ranks]
        return _Group(
            name=same[0].name if len(same) == 1 else "",
            description=same[0].description if len(same) == 1 else "",
            ranks=ranks,
            size=len(ranks),
            origin=Origin.DERIVED,
        )

    def notes(self, table: Table) -> tuple[str, ...]:
        """Assumptions about groups, one sentence each."""
        origin = table["group_origin"]
        assumed, unknown = (int((origin == one).sum()) for one in (Origin.DERIVED, Origin.ABSENT))
        notes = []
        if assumed:
            ranks, group = self.only_ranks(), self.message_group()
            whose = "the only group of this rank" if self.groups else "all ranks of the job"
            if not ranks and group is not None:  # sends and receives
                ranks, whose = group.ranks, f"{group.description or group.name}, along which "
                whose += "ranks exchange messages"
            if np.isin(table["kind"][origin == Origin.DERIVED], _MESSAGES).all():
                # gloo's never do, so counts per rank are not worth a line each
                who = "Sends and receives"
            else:
                who = f"{assumed} of {len(table)} collectives"
                whose += f", ranks {fold_ranks(ranks)}"
            notes.append(f"{who} do not name a process group: distprof assumes {whose}.")
        if unknown:
            notes.append(f"The process group of {unknown} of {len(table)} collectives is unknown.")
        return tuple(notes)
