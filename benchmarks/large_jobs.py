"""Jobs of thousands of ranks, generated on the fly: right ranks and nodes named, time and memory.

    python -m benchmarks.large_jobs                                # 256 ranks x 4 steps
    python -m benchmarks.large_jobs --ranks 1024 4096 8192 16384
    python -m benchmarks.large_jobs --ranks 1024 --steps 512       # 18.9 million collectives
    python -m benchmarks.large_jobs --growth                       # exponents

A job has a known truth: the CPU of one rank launches late, the GPUs of two nodes are slower by
12 %, and each node's clock is off by up to 10 ms and drifts by up to 20 ppm. Its ranks are
simulated with numpy, all at once, and written straight into a cache in a temporary folder, as if
``distprof analyze`` had read their traces before. A fresh process then analyses them from there.
Collectives span a node, the ranks with the same index in every node, or the whole job, with one
kernel before each.

Growth is fitted to the cost beyond that of the smallest job, whose start-up all jobs share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measuring import MB, Cost, machine, measure, medians, print_table, versions  # noqa: E402

from distprof.ingest.assemble import assemble_run  # noqa: E402
from distprof.ingest.cache import EntryWriter  # noqa: E402
from distprof.ingest.discovery import TraceFile  # noqa: E402
from distprof.ingest.rank import IngestOptions, _key, _Source, _Summary  # noqa: E402
from distprof.ingest.tables_file import Part  # noqa: E402
from distprof.kernel import available_processors  # noqa: E402
from distprof.run.run import Device, Quality, Rank, Run  # noqa: E402
from distprof.run.tables import (  # noqa: E402
    ACTIVITY,
    COLLECTIVES,
    HOST,
    STEPS,
    RankTables,
)
from distprof.run.topology import ProcessGroup  # noqa: E402
from distprof.schema import ABSENT, Coded, Table  # noqa: E402
from distprof.sections.measure_run import measure_run  # noqa: E402
from distprof.sections.whatif.trace_graph import trace_graph  # noqa: E402
from distprof.terms import (  # noqa: E402
    ActivityKind,
    CollectiveKind,
    MeshAxis,
    Origin,
    StepSource,
)
from distprof.units import fold_ranks  # noqa: E402

EPOCH_NS = 1_716_423_322_000_000_000
NODE = 8
PER_STEP = 36
COMPUTE_NS, LAUNCH_NS, GAP_NS = 1_000_000, 6_000, 2_000
LATE_NS = 300_000
"""Delay of the slow rank's CPU in launching each computation kernel."""
SLOW_NODES = 1.12
AHEAD_NS = 3_000_000
"""How far CPUs run ahead of their GPUs."""
AXES = (MeshAxis.TP, MeshAxis.DP, MeshAxis.WORLD)
TRANSFER_NS = (60_000, 250_000, 400_000)
NUM_BYTES = (16 << 20, 64 << 20, 256 << 20)

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to generate.

    Args:
        num_ranks: A multiple of eight.
        num_steps: Steps.
        per_step: Collectives of each rank in a step.
        seed: Seed of the noise, the clocks and the choice of slow ranks.
    """

    num_ranks: int
    num_steps: int
    per_step: int = PER_STEP
    seed: int = 0

    @property
    def dice(self) -> np.random.Generator:
        """Random numbers for the choice of slow ranks, from the start."""
        return np.random.default_rng(self.seed)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of eight ranks."""
        return self.num_ranks // NODE

    @property
    def slow_nodes(self) -> tuple[int, ...]:
        """Two nodes."""
        chosen = self.dice.choice(self.num_nodes, 3, replace=False)[:2]
        return tuple(sorted(chosen.tolist()))

    @property
    def slow_rank(self) -> int:
        """A rank of a third node."""
        node = self.dice.choice(self.num_nodes, 3, replace=False)[2]
        return int(node) * NODE + 3

    @property
    def slow_ranks(self) -> list[int]:
        """All ranks of the slow nodes."""
        return [node * NODE + place for node in self.slow_nodes for place in range(NODE)]

    def axis(self, number: int) -> int:
        """Index into :data:`AXES` of a collective: mostly a node; a global one ends a step."""
        if number % self.per_step == self.per_step - 1:
            return 2
        return 1 if number % 4 == 3 else 0


@dataclass(kw_only=True)
class Times:
    """Start and end of each collective on each rank, ns since the job's start on its own clock."""

    begin: Int64
    end: Int64


def simulated(job: Job) -> Times:
    """Simulate times of shape ``(ranks, collectives)``: data move once a group is complete."""
    dice = np.random.default_rng([job.seed, 1])
    count = job.num_steps * job.per_step
    pace = np.ones(job.num_ranks)
    pace[job.slow_ranks] = SLOW_NODES
    late = np.zeros(job.num_ranks, np.int64)
    late[job.slow_rank] = LATE_NS
    begin = np.empty((count, job.num_ranks), np.int64)
    end = np.empty_like(begin)
    now = np.zeros(job.num_ranks, np.int64)
    for number in range(count):
        noise = 1 + 0.004 * dice.standard_normal(job.num_ranks)
        now = now + (COMPUTE_NS * pace * noise).astype(np.int64) + late + 2 * GAP_NS
        begin[number] = now
        axis = job.axis(number)
        grid = now.reshape(job.num_nodes, NODE)
        last = (grid.max(1, keepdims=True), grid.max(0, keepdims=True), grid.max())[axis]
        now = (np.broadcast_to(last, grid.shape) + TRANSFER_NS[axis]).reshape(-1)
        end[number] = now
    return Times(begin=begin.T, end=end.T)


def generate(job: Job, folder: Path) -> tuple[Path, Path]:
    """Write stubs of traces and their cache entries. Returns both folders."""
    traces, kept = folder / "traces", folder / "cache"
    traces.mkdir()
    times = simulated(job)
    clocks = np.random.default_rng([job.seed, 2])
    offset = clocks.integers(-10_000_000, 10_000_000, job.num_nodes)
    drift = clocks.uniform(-20e-6, 20e-6, job.num_nodes)
    groups = _groups(job)
    names = _names(groups)

    def jobs() -> Iterator[tuple[Any, ...]]:
        for rank in range(job.num_ranks):
            node = rank // NODE
            own = [
                EPOCH_NS + offset[node] + part[rank] + np.rint(drift[node] * part[rank])
                .astype(np.int64)
                for part in (times.begin, times.end)
            ]  # fmt: skip
            yield traces, kept, job, rank, own[0], own[1], groups[rank], names[rank]

    with ProcessPoolExecutor() as pool:
        every = jobs()
        while some := list(itertools.islice(every, 256)):  # one table at a time
            list(pool.map(_write, some, chunksize=16))
    return traces, kept


def _groups(job: Job) -> list[tuple[ProcessGroup, ...]]:
    """The three groups of each rank."""
    whole = tuple(range(job.num_ranks))

    def group(number: int, ranks: Sequence[int]) -> ProcessGroup:
        axis = AXES[number]
        return ProcessGroup(
            name=str(number),
            description="default_pg" if axis is MeshAxis.WORLD else f"mesh_{axis}",
            ranks=tuple(ranks),
            size=len(ranks),
            backend="nccl",
            axis=axis,
        )

    nodes = [group(0, whole[low : low + NODE]) for low in range(0, job.num_ranks, NODE)]
    across = [group(1, whole[place::NODE]) for place in range(NODE)]
    everybody = group(2, whole)
    return [(nodes[rank // NODE], across[rank % NODE], everybody) for rank in whole]


def _names(groups: list[tuple[ProcessGroup, ...]]) -> list[tuple[str, ...]]:
    """Members of the groups as a trace has them, made once per group."""
    known = {id(group): group for of_rank in groups for group in of_rank}
    text = {number: fold_ranks(group.ranks) for number, group in known.items()}
    return [tuple(text[id(group)] for group in of_rank) for of_rank in groups]


def _write(given: tuple[Any, ...]) -> None:
    traces, kept, job, rank, begin, end, groups, names = given
    path = traces / f"rank{rank}.json"
    path.write_text(json.dumps({"traceEvents": [], "distributedInfo": {"rank": rank}}))
    options = IngestOptions(cache_dir=str(kept))
    key = _key(_Source(trace=TraceFile(path=str(path)), opened=str(path), flight=None), options)
    collectives, activity, host, steps = tables_of(job, rank, begin, end, groups, names)
    with EntryWriter(kept, key) as writer:
        writer.tables.write_table(Part.ACTIVITY, activity)
        writer.tables.write_table(Part.CALLS, host)
        writer.tables.write_table(Part.COLLECTIVES, collectives)
        writer.tables.write_table(Part.STEPS, steps)
        summary = _Summary(
            rank=rank,
            world_size=job.num_ranks,
            host=f"node{rank // NODE}",
            backend="nccl",
            device=Device(name="Generated GPU", count=NODE),
            groups=tuple(msgspec.Raw(msgspec.json.encode(group)) for group in groups),
            versions={"nccl": "2.21.5"},
            capture_start_ns=int(activity["start_ns"][0]),
            capture_end_ns=int(activity["end_ns"][-1]),
            has_epoch=True,
            has_host=True,
            step_source=StepSource.DEVICE,
            step_note="generated",
            quality=Quality(num_events=len(activity) + len(host)),
        )
        writer.tables.write_rank(msgspec.json.encode(summary))
        writer.commit()


def tables_of(
    job: Job,
    rank: int,
    begin: Int64,
    end: Int64,
    groups: Sequence[ProcessGroup],
    names: Sequence[str],
) -> tuple[Table, Table, Table, Table]:
    """COLLECTIVES, ACTIVITY, HOST and STEPS of one rank: a kernel before each collective."""
    count = len(begin)
    axis = np.array([job.axis(number) for number in range(count)], np.int32)
    number = np.arange(count, dtype=np.int64)
    is_late = rank == job.slow_rank
    before = np.concatenate((begin[:1] - COMPUTE_NS, end[:-1]))
    kernel_start = before + GAP_NS + (LATE_NS if is_late else 0)
    start = np.stack((kernel_start, begin), axis=1).ravel()
    finish = np.stack((begin - GAP_NS, end), axis=1).ravel()
    launched = np.stack(
        (kernel_start - (2 * LAUNCH_NS if is_late else AHEAD_NS),
         kernel_start - LAUNCH_NS if is_late else begin - AHEAD_NS), axis=1
    ).ravel()  # fmt: skip
    correlation = np.arange(1, 2 * count + 1, dtype=np.int64)
    thread = Coded(np.zeros(2 * count, np.int32), ("1/1",))
    seq = np.zeros(count, np.int64)
    for which in range(len(AXES)):
        mine = axis == which
        seq[mine] = np.arange(mine.sum())

    def one(text: str, length: int = count) -> Coded:
        return Coded(np.zeros(length, np.int32), (text,))

    def full(value: Any, dtype: Any, length: int = count) -> NDArray[Any]:
        return np.full(length, value, dtype)

    collectives = Table(
        COLLECTIVES,
        {
            "start_ns": begin,
            "end_ns": end,
            "is_timed": full(True, np.bool_),
            "enqueue_ns": launched[1::2],
            "kind": full(CollectiveKind.ALL_REDUCE, np.int8),
            "kind_origin": full(Origin.MEASURED, np.int8),
            "group": Coded(axis, tuple(g.name for g in groups)),
            "group_desc": Coded(axis, tuple(g.description for g in groups)),
            "group_ranks": Coded(axis, tuple(names)),
            "group_size": np.array([g.size for g in groups], np.int32)[axis],
            "group_origin": full(Origin.MEASURED, np.int8),
            "seq": seq,
            "dtype": one("BFloat16"),
            "bytes": np.array(NUM_BYTES, np.int64)[axis],
            "bytes_origin": full(Origin.MEASURED, np.int8),
            "peer": full(ABSENT, np.int32),
            "in_splits": one(""),
            "out_splits": one(""),
            "stream": full(20, np.int64),
            "correlation": correlation[1::2],
            "name": one("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        },
    )
    kinds = (ActivityKind.COMPUTATION, ActivityKind.COMMUNICATION)
    activity = Table(
        ACTIVITY,
        {
            "start_ns": start,
            "end_ns": finish,
            "name": Coded(
                np.tile(np.array([0, 1], np.int32), count),
                ("gemm_bf16_128x128", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
            ),
            "kind": np.tile(np.array(kinds, np.int8), count),
            "stream": np.tile(np.array([7, 20], np.int64), count),
            "device": full(rank % NODE, np.int32, 2 * count),
            "correlation": correlation,
            "bytes": full(ABSENT, np.int64, 2 * count),
            "blocks": np.tile(np.array([512, 24], np.int32), count),
        },
    )
    host = Table(
        HOST,
        {
            "start_ns": launched,
            "end_ns": launched + LAUNCH_NS,
            "name": one("cudaLaunchKernel", 2 * count),
            "category": one("runtime", 2 * count),
            "thread": thread,
            "correlation": correlation,
            "sequence": full(ABSENT, np.int32, 2 * count),
            "inputs": one("", 2 * count),
        },
    )
    first = kernel_start[:: job.per_step]
    steps = {
        "step": number[: job.num_steps],
        "start_ns": first,
        "end_ns": np.append(first[1:], end[-1]),
        "complete": full(True, np.bool_, job.num_steps),
    }
    return collectives, activity, host, Table(STEPS, steps)


def wrongly_named(job: Job, report: dict[str, Any]) -> list[str]:
    """Errors of the report on slow ranks: wrong statements and omissions."""
    sets = [set(one["ranks"]) for one in report["stragglers"]["sets"]]
    truth = [{job.slow_rank}, set(job.slow_ranks)]
    wrong = [f"{fold_ranks(sorted(one))} is not slow" for one in sets if one not in truth]
    return wrong + [f"{fold_ranks(sorted(one))} not named" for one in truth if one not in sets]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One analysis."""

    job: Job
    cost: Cost
    report_bytes: int
    wrong: list[str]

    @property
    def collectives(self) -> int:
        """Number of collectives of all ranks."""
        return self.job.num_ranks * self.job.num_steps * self.job.per_step


def analysed(job: Job, folder: Path) -> Result:
    """``distprof analyze`` of a job whose ranks are in the cache, in a fresh process."""
    traces, kept = generate(job, folder)
    output = folder / "report.json"
    arguments = [str(traces), "--cache-dir", str(kept), "--save-report", str(output), "--quiet"]
    arguments += ["--executor", f"process:{available_processors()}"]  # as for traces of real size
    cost = measure([sys.executable, "-m", "distprof", "analyze", *arguments], tree=True)
    report = json.loads(output.read_bytes())
    return Result(
        job=job,
        cost=cost,
        report_bytes=output.stat().st_size,
        wrong=wrongly_named(job, report),
    )


def shown(results: Sequence[Result]) -> None:
    rows = [
        (
            f"{result.job.num_ranks:,}",
            f"{result.job.num_steps:,}",
            f"{result.collectives:,}",
            f"{result.cost.cpu_s:.1f}",
            f"{result.cost.wall_s:.1f}",
            f"{result.cost.tree_bytes / MB:,.0f}",
            f"{result.report_bytes / MB:.1f}",
            "; ".join(result.wrong) or "yes",
        )
        for result in results
    ]
    header = ("ranks", "steps", "collectives", "CPU s", "wall s", "tree MB", "report MB", "right")
    print_table(header, rows)


GROWTH = {
    "ranks": [Job(num_ranks=n, num_steps=4) for n in (128, 256, 512, 1_024)],
    "steps": [Job(num_ranks=64, num_steps=n) for n in (16, 32, 64, 128)],
    "collectives in a step": [
        Job(num_ranks=64, num_steps=8, per_step=n) for n in (72, 144, 288, 576)
    ],
}
SMALLEST = Job(num_ranks=24, num_steps=4)
LARGEST_EXPONENT = 1.05


def show_growth(num_rounds: int) -> list[str]:
    """Exponents of time and memory in ranks, steps and collectives; those beyond the limit."""
    every = {"": [SMALLEST], **GROWTH}
    costs: dict[Job, list[Cost]] = {}
    for _ in range(num_rounds):
        for job in itertools.chain(*every.values()):
            costs.setdefault(job, []).append(measured(job).cost)
    start = medians(costs[SMALLEST])
    rows, beyond = [], []
    for what, jobs in GROWTH.items():
        of_jobs = [medians(costs[job]) for job in jobs]
        size = np.log([job.num_ranks * job.num_steps * job.per_step for job in jobs])
        cpu = [cost.cpu_s - start.cpu_s for cost in of_jobs]
        memory = [cost.tree_bytes - start.tree_bytes for cost in of_jobs]
        exponents = [float(np.polyfit(size, np.log(values), 1)[0]) for values in (cpu, memory)]
        rows.append(
            (
                what,
                " ".join(f"{cost.cpu_s:.1f}" for cost in of_jobs),
                f"{exponents[0]:.2f}",
                " ".join(f"{cost.tree_bytes / MB:.0f}" for cost in of_jobs),
                f"{exponents[1]:.2f}",
            )
        )
        beyond += [f"{what} ** {b:.2f}" for b in exponents if b > LARGEST_EXPONENT]
    print_table(("doubled three times", "CPU s", "exponent", "tree MB", "exponent"), rows)
    return beyond


# Memory of the comparison of ranks ----------------------------------------------------------------


@dataclass(frozen=True)
class InMemory:
    """Tables of one rank, made on request."""

    tables: RankTables
    path: ClassVar[str] = ""

    def load(self, *, every_host_row: bool = False) -> RankTables:
        """The tables unchanged; there are no other host rows."""
        del every_host_row
        return self.tables


def run_of(job: Job) -> Run:
    """The job as a run, in the form that ingest returns."""
    times, groups = simulated(job), _groups(job)
    ranks = []
    for rank, names in enumerate(_names(groups)):
        begin, end = (EPOCH_NS + part[rank] for part in (times.begin, times.end))
        tables = tables_of(job, rank, begin, end, groups[rank], names)
        collectives, activity, host, steps = tables
        source = RankTables(
            activity=activity, host=host, collectives=collectives, steps=steps, has_host=True
        )
        ranks.append(
            Rank(
                rank=rank,
                path="",
                rank_origin="trace",
                world_size=job.num_ranks,
                host=f"node{rank // NODE}",
                backend="nccl",
                device=Device(name="Generated GPU", count=NODE),
                groups=groups[rank],
                versions={},
                capture_start_ns=int(activity["start_ns"][0]),
                capture_end_ns=int(activity["end_ns"][-1]),
                has_epoch=True,
                step_source=StepSource.DEVICE,
                step_note="",
                steps=steps,
                collectives=collectives.compact(),
                quality=Quality(),
                tables=InMemory(source),
            )
        )
    return assemble_run("generated", ranks)


def array_bytes(held: Any, seen: set[int]) -> int:
    """Bytes of the arrays in structs, tables and containers, each once."""
    if isinstance(held, np.ndarray):
        where = held.__array_interface__["data"][0]
        if where in seen:
            return 0
        seen.add(where)
        return held.itemsize if 0 in held.strides else held.nbytes
    if isinstance(held, Table):
        return array_bytes(list(held.__getstate__()[1].values()), seen)
    if isinstance(held, msgspec.Struct):
        return array_bytes([getattr(held, name) for name in held.__struct_fields__], seen)
    if isinstance(held, dict):
        return array_bytes(list(held.values()), seen)
    if isinstance(held, (list, tuple)):
        return sum(array_bytes(one, seen) for one in held)
    return 0


def held_bytes(job: Job) -> dict[str, int]:
    """Bytes of each summary that is kept for all ranks at once."""
    run = run_of(job)
    analyses = measure_run(run)
    seen: set[int] = set()
    lines = [analysis.line for analysis in analyses.values()]
    parts: dict[str, Any] = {
        "collectives and steps of all ranks": [(r.collectives, r.steps) for r in run.ranks],
        "matches": run.matches,
        "ends of waits": dict(analyses.wait_ends),
        "lines, which are simulated": lines,
        "the other measurements of ranks": list(analyses.values()),
        "the simulated graph": trace_graph(run, analyses),
    }
    return {name: array_bytes(held, seen) for name, held in parts.items()}


def show_bytes() -> None:
    """Bytes per collective and rank of each summary, from jobs of two lengths."""
    short, long = (Job(num_ranks=64, num_steps=steps) for steps in (4, 68))
    few, many = held_bytes(short), held_bytes(long)
    more = (long.num_steps - short.num_steps) * PER_STEP * short.num_ranks
    rows, sums = [], [0.0, 0.0]
    for name in few:
        per_row = (many[name] - few[name]) / more
        rest = few[name] - per_row * short.num_steps * PER_STEP * short.num_ranks
        per_rank = rest / short.num_ranks
        sums = [sums[0] + per_row, sums[1] + per_rank]
        rows.append((name, f"{per_row:.0f}", f"{per_rank:,.0f}"))
    rows.append(("all", f"{sums[0]:.0f}", f"{sums[1]:,.0f}"))
    print_table(("kept of all ranks at once", "B per collective", "B per rank"), rows)


def measured(job: Job) -> Result:
    with tempfile.TemporaryDirectory() as name:
        return analysed(job, Path(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[256])
    parser.add_argument("--steps", type=int, nargs="+", default=[4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", action="store_true", help="fit exponents instead")
    parser.add_argument("--bytes", action="store_true", help="memory of each summary instead")
    parser.add_argument("--rounds", type=int, default=1, help="of --growth, whose medians count")
    options = parser.parse_args()
    print(machine(), versions("distprof", "numpy", "pyarrow", "msgspec"), sep="\n")
    if options.bytes:
        show_bytes()
        return
    if options.growth:
        wrong = show_growth(options.rounds)
    else:
        sizes = itertools.product(options.ranks, options.steps)
        jobs = [Job(num_ranks=n, num_steps=steps, seed=options.seed) for n, steps in sizes]
        results = [measured(job) for job in jobs]
        shown(results)
        wrong = [text for result in results for text in result.wrong]
    if wrong:
        raise SystemExit(f"wrong: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
