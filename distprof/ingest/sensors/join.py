"""Join GPU sensors with a recording: find the rank of each GPU and align sample times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from distprof.artefacts.record import Gap
from distprof.ingest.sensors.collect import bus_id, whole
from distprof.run.logs import Clock, DeviceEvent, DeviceLog, DeviceSeries, NcclLog, OfDevice
from distprof.run.records import RankRecords, RecordSource
from distprof.run.run import ANOTHER_JOB, Rank, Run
from distprof.schema import Int64Array, Table
from distprof.units import NS_PER_S, name_of_device, name_ranks

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Places(msgspec.Struct, frozen=True):
    """Ranks by GPU and process."""

    by_bus: Mapping[tuple[str, str], int]  # Host and bus id to rank, from NCCL's log.
    # Node and index of the GPU in the driver's order to rank.
    by_index: Mapping[tuple[str, int], int]
    by_uuid: Mapping[str, int]  # UUID to rank, if ``CUDA_VISIBLE_DEVICES`` lists UUIDs.
    nodes: tuple[str, ...]  # Names of the nodes; a single empty name if they are unknown.
    by_pid: Mapping[tuple[str, int], int]  # Host and process id to rank, from run.json.
    devices: Mapping[int, str] = {}  # Rank to the name of its GPU.

    @staticmethod
    def of(run: Run) -> Places:
        """The places of a run's ranks."""
        nodes = _nodes(run)
        by_index: dict[tuple[str, int], int] = {}
        by_uuid: dict[str, int] = {}
        text = run.job.environment.get(_VISIBLE, "") if run.job is not None else ""
        visible = [name.strip() for name in text.split(",")]  # of the GPUs, empty if all are
        visible = visible if all(visible) else []
        for node, local in nodes.items():
            for position, rank in local.items():
                name = visible[position] if position < len(visible) else str(position)
                index = whole(name)
                if index is not None:
                    by_index[node, index] = rank
                else:
                    by_uuid[name] = rank
        log = run.get(NcclLog)
        size = run.topology.world_size
        by_bus = _bus_ids(log) if log is not None else {}
        return Places(
            by_bus={at: rank for at, rank in by_bus.items() if size is None or rank < size},
            by_index=by_index,
            by_uuid=by_uuid,
            nodes=tuple(nodes),
            devices={rank.rank: rank.device.name for rank in run.ranks},
            by_pid={
                (entry.host, entry.pid): entry.rank
                for entry in (() if run.job is None else run.job.ranks)
                if entry.pid is not None
            },
        )

    def rank_of(self, host: str, index: int | None, bus: str, uuid: str) -> int | None:
        """The rank on a GPU, by its index in the driver's order; None if it is uncertain."""
        if uuid in self.by_uuid:
            return self.by_uuid[uuid]
        if bus:
            by_bus = self.by_bus.items()
            found = {rank for (at, one), rank in by_bus if one == bus and _same(at, host)}
            if len(found) == 1:
                return found.pop()
        node = self.node_named(host)
        return None if node is None or index is None else self.by_index.get((node, index))

    def rank_of_process(self, host: str, pid: int | None) -> int | None:
        """The rank of a process; None if it is uncertain, as without a host name on several nodes.

        The process id is the host's, which may differ from the one inside a container.
        """
        found = {
            rank for (at, number), rank in self.by_pid.items() if number == pid and _same(at, host)
        }
        is_sure = bool(host) or len({at for at, _ in self.by_pid}) == 1
        return found.pop() if len(found) == 1 and is_sure else None

    def others_than(self, name: str, rank: int | None) -> str:
        """The job's GPUs, or that of a known rank, if a GPU is of another model; else empty."""
        model = _model(name)
        known = self.devices if rank is None else {rank: self.devices.get(rank, "")}
        models = {_model(device): device for device in known.values()}
        if not model or not models or "" in models or model in models:
            return ""
        return ", ".join(sorted(models.values()))

    def node_named(self, host: str) -> str | None:
        """The node of a host name; without a host name, the only node if there is just one."""
        if not host:
            return self.nodes[0] if len(self.nodes) == 1 else None
        named = [node for node in self.nodes if node and _same(node, host)]
        if named:
            return named[0] if len(named) == 1 else None
        return self.nodes[0] if self.nodes == ("",) else None


_MODEL = re.compile(r"(?<![a-z0-9])([a-z]{0,2}\d{1,4}[a-z]{0,2}?)x?(?![a-z0-9])")


def _model(name: str) -> str:
    """The model in a GPU's name, such as ``h100`` in ``NVIDIA H100 80GB HBM3``; empty without one.

    Drivers and profilers name variants differently (``MI250X``, ``MI250``), so a final X is cut.
    """
    match = _MODEL.search(name.lower())
    return "" if match is None else match[1]


def _same(first: str, second: str) -> bool:
    """Whether two names may denote the same host, with or without a domain."""
    return not second or first == second or first.partition(".")[0] == second.partition(".")[0]


def _nodes(run: Run) -> dict[str, dict[int, int]]:
    """Node to local rank to global rank."""
    if run.job is not None and any(entry.local_rank is not None for entry in run.job.ranks):
        nodes: dict[str, dict[int, int]] = {}
        names = {rank: node for node, ranks in run.topology.nodes.items() for rank in ranks}
        for entry in run.job.ranks:
            if entry.local_rank is not None:
                name = names.get(entry.rank, entry.host)
                nodes.setdefault(name, {})[entry.local_rank] = entry.rank
        return nodes
    counts = {rank.device.count for rank in run.ranks if rank.device.count}
    size = counts.pop() if len(counts) == 1 else None
    if run.topology.nodes:
        if size is not None:  # unless nodes hold separate blocks of as many ranks as it has GPUs
            blocks = [{rank // size for rank in ranks} for ranks in run.topology.nodes.values()]
            are_blocks = all(len(block) == 1 for block in blocks)
            size = size if are_blocks and len(set.union(*blocks)) == len(blocks) else None
        is_named = run.topology.node_origin != "device_count"
        return {
            # files cannot know the name of a node inferred from GPU counts
            node if is_named or len(run.topology.nodes) > 1 else "": _local(ranks, size)
            for node, ranks in run.topology.nodes.items()
        }
    return {"": _local([rank.rank for rank in run.ranks], size)} if _is_one_node(run.ranks) else {}


def _local(ranks: Sequence[int], size: int | None) -> dict[int, int]:
    """Local rank to global rank, by the convention that ranks are numbered node by node."""
    if size is not None and len({rank // size for rank in ranks}) == 1:
        return {rank % size: rank for rank in ranks}
    return dict(enumerate(sorted(ranks)))


def _is_one_node(ranks: Sequence[Rank]) -> bool:
    """Whether all ranks must be on one node: the world is no larger than a node's GPU count."""
    if not ranks:
        return False
    worlds = Counter(rank.world_size for rank in ranks)
    world = worlds.most_common(1)[0][0] or len(ranks)
    counts = [rank.device.count for rank in ranks if rank.device.count]
    return world == 1 or (bool(counts) and world <= min(counts))


def _bus_ids(log: NcclLog) -> dict[tuple[str, str], int]:
    """Host and bus id to rank, from the largest communicator, in which ranks are global."""
    found: dict[tuple[str, str], int] = {}
    size = log.world_size
    for communicator in log.communicators:
        for member in communicator.members:
            process = log.processes[member.process]
            rank = process.rank
            if rank is None and communicator.num_ranks == size and communicator.is_certain:
                rank = member.rank
            if rank is not None and member.bus_id:
                found.setdefault((process.host, bus_id(member.bus_id)), rank)
    return found


QUARTER_NS = 900 * NS_PER_S  # time zones differ from UTC by multiples of this
_FARTHEST = 14 * 4  # quarters of an hour: no time zone is farther from UTC
_LEAST_SHARED = 0.5
_SLACK_NS = 2 * NS_PER_S
_WRITTEN_WITHIN_NS = 5 * NS_PER_S


class Recorded(msgspec.Struct, frozen=True):
    """Time span of a recording, ns since the epoch."""

    start_ns: int
    end_ns: int


class Zone(msgspec.Struct, frozen=True):
    """Shift to add to times in ns, and a description of the zone for display."""

    shift_ns: int
    text: str = ""


def recorded(run: Run) -> Recorded | None:
    """When the run was recorded, from its traces or else its job; None if unknown."""
    ranks = [rank for rank in run.ranks if rank.has_epoch]
    if ranks:
        return Recorded(
            min(rank.capture_start_ns for rank in ranks), max(rank.capture_end_ns for rank in ranks)
        )
    if run.job is not None and run.job.ended_ns is not None:
        return Recorded(run.job.started_ns, run.job.ended_ns)
    return None


def find_zone(
    clock: Clock, times: Sequence[Int64Array], when: Recorded, written_ns: int | None
) -> Zone | None:
    """The shift with which the samples cover the recording; None if no zone or more than one fits.

    Samples of a whole day cover a recording of a minute in many zones. In that case, the zone is
    used in which the last sample coincides with the last write of the file, if that is known. The
    ``clock`` is not ``none``, and the times of each series of the file ascend.
    """
    times = [series for series in times if len(series)]
    if not times:
        return None
    first = min(int(series[0]) for series in times)
    last = max(int(series[-1]) for series in times)
    periods = [int(np.median(np.diff(series))) for series in times if len(series) > 1]
    slack = _SLACK_NS + 2 * min(max(periods, default=0), 60 * NS_PER_S)
    if clock == "epoch":
        return Zone(0) if _covers(first, last, 0, when, slack) else None
    low = -(-(when.start_ns - slack - last) // QUARTER_NS)
    high = (when.end_ns + slack - first) // QUARTER_NS
    if clock == "local":
        low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    fitting = [
        k * QUARTER_NS
        for k in range(low, min(high, low + 10_000) + 1)
        if _covers(first, last, k * QUARTER_NS, when, slack)
    ]
    if len(fitting) > 1 and written_ns is not None:
        fitting = [s for s in fitting if abs(last + s - written_ns) < _WRITTEN_WITHIN_NS + slack]
    if len(fitting) != 1:
        return None
    (shift,) = fitting
    hours, minutes = divmod(abs(shift) // (60 * NS_PER_S), 60)
    name = f"UTC{'-' if shift > 0 else '+'}{hours:02d}:{minutes:02d}" if shift else "UTC"
    return Zone(shift, name if clock == "local" else "")


def _covers(first: int, last: int, shift: int, when: Recorded, slack: int) -> bool:
    start, end = first + shift - slack, last + shift + slack
    shared = min(end, when.end_ns) - max(start, when.start_ns)
    return shared >= _LEAST_SHARED * (when.end_ns - when.start_ns) and shared >= 0


# The join -----------------------------------------------------------------------------------------

_OfDevice = TypeVar("_OfDevice", bound=OfDevice)
# Errors up to this long before or after the recording are reported with it.
NEAR_NS = 3_600 * NS_PER_S
_ANY_HOST = "*"
_LOCAL_NS = 14 * 3_600 * NS_PER_S  # largest distance of a local time from UTC


class JoinedRecords(msgspec.Struct, frozen=True):
    """A rank's records with sensors from a file, if its own probes recorded none."""

    rank: int  # Global rank.
    telemetry: Table  # TELEMETRY, on the rank's own clock.
    origin: str  # Source of the telemetry, for display.
    own: RecordSource | None = None  # The rank's own records; None for bare traces.

    def load(self) -> RankRecords:
        """Read the rank's own records and add the sensors."""
        own = self.own.load() if self.own is not None else RankRecords(rank=self.rank)
        if len(own.telemetry):
            return own
        about = {**own.about, "telemetry": {"origin": self.origin}}
        return replace(own, telemetry=self.telemetry, about=about)


def with_device_log(run: Run, log: DeviceLog) -> Run:
    """The run with the sensors and errors of its GPUs.

    A series whose GPU is ambiguous is kept without a rank. Series of another time, GPUs that the
    job does not use, and errors logged long before or after the recording are skipped and listed as
    gaps.
    """
    places, when = Places.of(run), recorded(run)
    hosts = {file: _host_in(file, places) for file in log.files}
    if places.nodes == ("",) and len({one.host or hosts[one.file] for one in log.series}) > 1:
        places = replace(places, nodes=(), by_index={})  # several hosts, and the job's is unknown
    log, refused = _of_the_models(log, places, hosts)
    series = [_placed(one, places, hosts) for one in log.series]
    zones, notes = _zones(log, when)
    timed: list[DeviceSeries] = []
    for one in series:
        zone = zones.get((one.file, one.clock))
        if zone is not None:
            table = one.table.with_columns(t_ns=one.table["t_ns"] + zone.shift_ns)
            timed.append(replace(one, table=table, clock="epoch"))
        elif one.clock == "none":
            timed.append(one)
    timed, others = _of_the_job(timed)
    events = [_placed(event, places, hosts) for event in log.events]
    near = [event for event in events if when is None or _is_near(event, when)]
    merged = replace(
        log,
        series=tuple(timed),
        events=tuple(near),
        links=tuple(_placed(links, places, hosts) for links in log.links),
        states=tuple(_of_the_job([_placed(one, places, hosts) for one in log.states])[0]),
    )
    if far := len(events) - len(near):
        errors = f"{far:,} errors were" if far > 1 else "One error was"
        notes.append(f"{errors} not logged during the recording and skipped.")
    gaps = [Gap(what="damaged", message=note) for note in log.notes] + refused
    gaps += [Gap(what="assumed", message=note) for note in notes]
    gaps += _unplaced(timed, places.nodes)
    if others:
        gpus, names = _named(others)
        skipped = f"{gpus} in the sensor files ran no known rank ({names}): skipped."
        gaps.append(Gap(what="assumed", message=skipped))
    before = run.get(DeviceLog)
    logs = [merged] if before is None else [before, merged]
    return replace(
        run.having(_known_by_sensors(DeviceLog.merged(logs))),
        records={**run.records, **_records(run, timed)},
        gaps=(*run.gaps, *gaps),
    )


def _of_the_models(
    log: DeviceLog, places: Places, hosts: dict[str, str]
) -> tuple[DeviceLog, list[Gap]]:
    """The log without GPUs of other models than the job's, and the gaps that name them."""

    def others(one: _OfDevice) -> str:
        """Names of the job's GPUs if this one is of another model; else empty."""
        return places.others_than(one.name, _placed(one, places, hosts).rank)

    named = [(one.file, one.name, others(one)) for one in (*log.series, *log.states)]
    foreign = {file: (name, ours) for file, name, ours in reversed(named) if ours}
    series = tuple(one for one in log.series if not others(one))
    states = tuple(one for one in log.states if not others(one))
    whole = set(foreign) - {one.file for one in (*series, *states)}
    refused = "The ranks ran on {}, so {} in {} is not used."
    gaps = [
        Gap(what=ANOTHER_JOB, message=refused.format(ours, theirs, file))
        for file, (theirs, ours) in foreign.items()
    ]
    return replace(
        log,
        series=series,
        states=states,
        events=tuple(one for one in log.events if one.file not in whole),
        links=tuple(one for one in log.links if one.file not in whole),
    ), gaps


def _placed(one: _OfDevice, places: Places, hosts: dict[str, str]) -> _OfDevice:
    """The entry with its rank, and with the host from the file name if it names none."""
    host = one.host or hosts.get(one.file, "")
    if isinstance(one, DeviceEvent) and one.kind == "fabric":
        return replace(one, host=host)
    of_process = None
    if isinstance(one, DeviceEvent):
        of_process = places.rank_of_process(host, one.pid)
        if one.kind in ("crash", "oom"):
            return replace(one, host=host, rank=of_process)
    on_device = places.rank_of(host, one.index, one.bus_id, one.uuid)
    return replace(one, host=host, rank=of_process if on_device is None else on_device)


def _known_by_sensors(log: DeviceLog) -> DeviceLog:
    """The log with ranks for errors, links and states of GPUs that a series assigns to a rank.

    A kernel log has only bus ids, while nvidia-smi gives them together with the GPU index.
    """
    ranks: dict[tuple[str, str], set[int]] = {}
    for one in log.series:
        for name in (one.bus_id, one.uuid):
            if name and one.rank is not None:
                ranks.setdefault((one.host or _ANY_HOST, name), set()).add(one.rank)
                ranks.setdefault(("", name), set()).add(one.rank)

    def known(one: _OfDevice) -> _OfDevice:
        if one.rank is not None or (isinstance(one, DeviceEvent) and one.kind != "xid"):
            return one
        names = (one.uuid, one.bus_id)
        places = [(host, name) for host in (one.host, _ANY_HOST) for name in names]
        found = set().union(*(ranks.get(place, ()) for place in places))
        return replace(one, rank=found.pop() if len(found) == 1 else None)

    return replace(
        log,
        events=tuple(map(known, log.events)),
        links=tuple(map(known, log.links)),
        states=tuple(map(known, log.states)),
    )


def _host_in(file: str, places: Places) -> str:
    """The node named in the file name, if exactly one is."""
    name = PurePosixPath(file).name
    found = [
        node
        for node in places.nodes
        if node and re.search(rf"(?<![A-Za-z0-9]){re.escape(node)}(?![A-Za-z0-9])", name)
    ]
    return found[0] if len(found) == 1 else ""


def _zones(log: DeviceLog, when: Recorded | None) -> tuple[dict[tuple[str, str], Zone], list[str]]:
    """Zone of the times by file and clock, and notes on the choices."""
    zones: dict[tuple[str, str], Zone] = {}
    notes = []
    for file, clock in dict.fromkeys((one.file, one.clock) for one in log.series):
        if clock == "none":
            notes.append(
                f"Samples in {file} have no times: they count for the whole job and do not "
                "appear on the timeline."
            )
            continue
        times = [one.table["t_ns"] for one in log.series if (one.file, one.clock) == (file, clock)]
        zone = find_zone(clock, times, when, log.written_ns.get(file)) if when else None
        if zone is None:
            reason = "the date of the recording is unknown."
            if when is not None and clock == "epoch":
                reason = "their times do not fit the time of the recording."
            elif when is not None:
                reason = (
                    "no time zone, or more than one, fits the time of the recording. If they "
                    "belong to it, append the time zone to each time (Z, +02:00)."
                )
            notes.append(f"Samples in {file} are not used: {reason}")
            continue
        zones[file, clock] = zone
        if zone.text:
            notes.append(
                f"distprof reads the times in {file} as local time ({zone.text}), because its "
                "samples then cover the recording."
            )
    return zones, notes


def _of_the_job(devices: Sequence[_OfDevice]) -> tuple[list[_OfDevice], list[_OfDevice]]:
    """GPUs that the job may use, and GPUs without a rank on hosts with known ranks."""
    known = {one.host for one in devices if one.rank is not None}
    others = [one for one in devices if one.rank is None and one.host in known]
    return [one for one in devices if one.rank is not None or one.host not in known], others


def _named(devices: Iterable[DeviceSeries]) -> tuple[str, str]:
    """The number of GPUs, and the names of some, in words."""
    names = [name_of_device(one.host, one.index, one.bus_id, one.uuid) for one in devices]
    names = list(dict.fromkeys(names))
    gpus = f"{len(names)} GPU{'s' if len(names) > 1 else ''}"
    return gpus, ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _records(run: Run, series: Iterable[DeviceSeries]) -> dict[int, RecordSource]:
    """Rank to its records with the best series: with times if possible, then the longest."""
    best: dict[int, DeviceSeries] = {}
    for one in sorted(series, key=lambda one: (one.clock == "none", -len(one.table))):
        if one.rank is not None:
            best.setdefault(one.rank, one)
    return {
        rank: JoinedRecords(
            rank=rank,
            telemetry=one.table,
            origin=f"{one.file}, {name_of_device(one.host, one.index, one.bus_id, one.uuid)}",
            own=run.records.get(rank),
        )
        for rank, one in sorted(best.items())
    }


def _is_near(event: DeviceEvent, when: Recorded) -> bool:
    if event.t_ns is None:
        return True
    slack = NEAR_NS + (_LOCAL_NS if event.clock == "local" else 0)
    return bool(when.start_ns - slack <= event.t_ns <= when.end_ns + slack)


def _unplaced(series: Iterable[DeviceSeries], nodes: Sequence[str]) -> list[Gap]:
    without = [one for one in series if one.rank is None]
    placed = {one.rank for one in series if one.rank is not None}
    if not without:
        return []
    gpus, names = _named(without)
    placed_ranks = f"; the GPUs of {name_ranks(placed)} are known" if placed else ""
    fix = ""
    if len(nodes) > 1 and not any(one.host for one in without):
        fix = f": put the node name into the file name (gpu.{nodes[0]}.csv)"
    message = f"Unknown rank for {gpus} in the sensor files ({names}){placed_ranks}{fix}."
    return [Gap(what="unplaced-devices", message=message)]
