"""Jobs of every parallelism with one fault or none, what must be said of them, and what is said.

A job goes through matching, clock alignment, every analyzer and every rule. What a fault costs is
known: the same job is simulated without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

import distprof
from distprof.documents.saved import Report
from distprof.ingest.assemble import assemble_run
from distprof.rules.base import Finding
from tests.simulator.job import (
    Fault,
    GarbageCollection,
    LateHost,
    LateInput,
    SimulatedJob,
    SlowDevice,
    SlowLink,
)
from tests.simulator.recording import Recording
from tests.simulator.shapes import (
    KERNELS,
    Shape,
    data_parallel,
    long_documents,
    mixture,
    pipeline,
    tensor_parallel,
)

__all__ = ["FAULTS", "Outcome", "Trial", "Truth", "healthy", "is_overstated", "judge", "trial_of"]

ACCUSING = ("STR", "PIP101", "MOE101", "INP", "HST103")
"""Codes of findings that blame a rank, a stage, an expert, a link or the data."""
ABSENT = "STR114"
"""Code of the finding that blames ranks that were not recorded."""
SHAPES = (
    *(Shape(num_nodes=2, per_node=2),) * 3,
    *(Shape(num_nodes=2, per_node=4),) * 4,
    *(Shape(num_nodes=4, per_node=4),) * 2,
    Shape(num_nodes=4, per_node=8),
)
LEAST = 0.02
"""Share of the step that a fault must cost to be named: devices differ by 1 or 2 %."""
LARGE = Shape(num_nodes=8, per_node=8)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One fault: what must be said of it, and the job without it.

    Args:
        sound: The same job without this fault.
        says: Words, one of which the message of the right finding holds.
        ranks: Whom the right finding names.
        codes: Rules that may say so.
        exact: Whether it must name all of these ranks; else some of them, or none.
    """

    sound: SimulatedJob
    says: tuple[str, ...]
    ranks: frozenset[int]
    codes: tuple[str, ...] = ("STR101", "STR102")
    exact: bool = False

    def is_named_by(self, found: Finding) -> bool:
        """Whether a finding names the right ranks, by a rule that may."""
        named = frozenset(found.ranks)
        right = named == self.ranks if self.exact else named <= self.ranks
        return right and found.code in self.codes

    def is_said_by(self, found: Finding) -> bool:
        """Whether a finding also says the right cause."""
        said = f"{found.headline} {found.message}"
        return self.is_named_by(found) and any(word in said for word in self.says)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A job, and each of its faults; none where nothing is wrong."""

    job: SimulatedJob
    truths: tuple[Truth, ...] = ()

    @property
    def is_faulty(self) -> bool:
        """Whether anything must be said."""
        return bool(self.truths)

    @property
    def ranks(self) -> frozenset[int]:
        """Whom findings may name."""
        return frozenset[int]().union(*(truth.ranks for truth in self.truths))


def shape_of(dice: random.Random) -> Shape:
    """4 to 64 ranks, large machines rarely."""
    return LARGE if dice.random() < 0.05 else dice.choice(SHAPES)


def any_job(dice: random.Random) -> SimulatedJob:
    """A job of any parallelism, for faults that strike any."""
    if dice.random() < 0.2:
        return piped(dice)[0]
    shape, kind = shape_of(dice), dice.choice((data_parallel, tensor_parallel, mixture))
    return kind(shape, dice)


def piped(dice: random.Random, skew: tuple[float, ...] = ()) -> tuple[SimulatedJob, int, int]:
    """A pipeline job, its stages and its replicas."""
    stages, replicas = dice.choice(((2, 2), (4, 2), (2, 4), (4, 4), (8, 2)))
    return pipeline(stages, replicas, dice, skew=skew), stages, replicas


# Jobs with a fault --------------------------------------------------------------------------------


def with_fault(job: SimulatedJob, fault: Fault, *says: str) -> Trial:
    truth = Truth(sound=job, says=says, ranks=frozenset({fault.rank}))
    return Trial(job=replace(job, faults=(fault,)), truths=(truth,))


def altered(trial: Trial, **changes: object) -> Trial:
    """The same with other expectations of its only fault."""
    (truth,) = trial.truths
    return replace(trial, truths=(replace(truth, **changes),))  # type: ignore[arg-type]


def slow_rank(dice: random.Random) -> Trial:
    """A device is slower by 5 to 30 %."""
    job = any_job(dice)
    rank, factor = dice.randrange(job.world_size), dice.uniform(1.05, 1.3)
    return with_fault(job, SlowDevice(rank=rank, factor=factor), "It runs the same kernels slower")


def late_input(dice: random.Random) -> Trial:
    """A rank's data loader takes 5 to 30 % of the step longer."""
    job = any_job(dice)
    fault = LateInput(rank=dice.randrange(job.world_size), ns=part_of_step(job, dice))
    return with_fault(job, fault, "Its input arrives late")


def late_host(dice: random.Random) -> Trial:
    """A rank's host stalls for 5 to 30 % of the step."""
    job = any_job(dice)
    fault = LateHost(rank=dice.randrange(job.world_size), ns=part_of_step(job, dice))
    return with_fault(job, fault, "Its CPU launches late")


def collects(dice: random.Random) -> Trial:
    """A rank's Python collects garbage in each step, or for twice as long in every second."""
    job = any_job(dice)
    every = dice.choice((1, 2))
    steps = tuple(job.steps)[::every]
    ns = part_of_step(job, dice) * every
    fault = GarbageCollection(rank=dice.randrange(job.world_size), ns=ns, steps=steps)
    trial = with_fault(job, fault, "garbage")
    return altered(trial, codes=("STR101", "STR102", "HST103"))


def part_of_step(job: SimulatedJob, dice: random.Random) -> int:
    return round(job.run().mean_step_ns() * dice.uniform(0.05, 0.3))


def hot_expert(dice: random.Random) -> Trial:
    """An expert gets 2.2 to 3.2 times the mean of all experts' tokens."""
    shape, seed = shape_of(dice), dice.random()
    number, load = 2 * shape.per_node, dice.uniform(2.2, 3.2)
    hot, times = dice.randrange(number), load * (number - 1) / (number - load)
    owners = range(hot // 2, shape.world_size, shape.per_node)
    truth = Truth(
        sound=mixture(shape, random.Random(seed)),
        says=(f"Expert {hot} ",),
        ranks=frozenset(owners),
        codes=("MOE101",),
    )
    job = mixture(shape, random.Random(seed), hot=hot, times=times)
    return Trial(job=job, truths=(truth,))


def slow_stage(dice: random.Random) -> Trial:
    """A stage has 15 to 40 % more work than the others, on all replicas; sound: the mean each."""
    stages, replicas = dice.choice(((2, 2), (4, 1), (4, 2), (2, 4), (4, 4), (8, 2)))
    stage, seed, factor = dice.randrange(stages), dice.random(), dice.uniform(1.15, 1.4)
    skew = tuple(factor if number == stage else 1.0 for number in range(stages))
    skew = tuple(round(KERNELS * part) / KERNELS for part in skew)
    even = (sum(skew) / stages,) * stages
    truth = Truth(
        sound=pipeline(stages, replicas, random.Random(seed), skew=even),
        says=(f"Stage {stage} ",),
        ranks=frozenset(range(stage * replicas, (stage + 1) * replicas)),
        codes=("PIP101",),
    )
    job = pipeline(stages, replicas, random.Random(seed), skew=skew)
    return Trial(job=job, truths=(truth,))


def long_sequences(dice: random.Random) -> Trial:
    """Documents of unlike lengths, in batches of equal numbers of tokens or not."""
    shape, seed, packed = shape_of(dice), dice.random(), dice.random() < 0.5
    spread = dice.uniform(0.2, 0.5)
    job = long_documents(shape, random.Random(seed), packed=packed, spread=spread)
    everybody = frozenset(range(shape.world_size))
    truth = Truth(sound=evened(job), says=("sequence",), ranks=everybody, codes=("STR106",))
    return Trial(job=job, truths=(truth,))


def evened(job: SimulatedJob) -> SimulatedJob:
    """The same work in the whole job, the same on every rank in each step."""
    cells: dict[tuple[str, int], list[float]] = {}
    for (what, _, step), factor in job.load.items():
        cells.setdefault((what, step), []).append(factor)
    mean = {cell: sum(factors) / len(factors) for cell, factors in cells.items()}
    load = {(what, rank, step): mean[what, step] for what, rank, step in job.load}
    return replace(job, load=load)


def slow_link(dice: random.Random) -> Trial:
    """What one rank exchanges with other nodes takes 1.5 to 2.5 times as long."""
    shape = shape_of(dice)
    job = tensor_parallel(shape, dice)
    rank = dice.randrange(shape.world_size)
    group = next(group for group in job.groups["dp"] if rank in group)
    fault = SlowLink(rank=rank, factor=dice.uniform(1.3, 2.3))
    trial = with_fault(job, fault, "Slow transfers of")
    return altered(trial, ranks=frozenset(group), codes=("STR107",))


FAULTS: tuple[Callable[[random.Random], Trial], ...] = (
    slow_rank,
    late_input,
    late_host,
    collects,
    hot_expert,
    slow_stage,
    long_sequences,
    slow_link,
)


# Healthy jobs -------------------------------------------------------------------------------------


def healthy(dice: random.Random) -> Trial:
    """Nobody is to blame."""
    if dice.random() < 0.2:
        packed = dice.random() < 0.5
        job = long_documents(shape_of(dice), dice, packed=packed, spread=dice.uniform(0, 0.01))
    else:
        job = any_job(dice)
    return Trial(job=job)


# Judging ------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Outcome:
    """What was said of one job, and what is true.

    Args:
        trial: The job.
        findings: All of the report, in its order.
        true_ns: What each fault costs per step.
        all_ns: What all of them cost together.
        step_ns: Mean step.
    """

    trial: Trial
    findings: list[Finding]
    true_ns: tuple[float, ...]
    all_ns: float
    step_ns: float

    @property
    def accusations(self) -> list[Finding]:
        """Findings that blame anybody or name a fault of the job, in the report's order.

        In a job with a fault, blame of the ranks without a trace accuses nobody who is known.
        """
        codes = {code for truth in self.trial.truths for code in truth.codes}
        known = [f for f in self.findings if f.code != ABSENT or not self.trial.job.faults]
        return [f for f in known if f.code.startswith(ACCUSING) or f.code in codes]

    @property
    def overstated(self) -> list[Finding]:
        """Findings whose cost their own simulation contradicts by half."""
        return [found for found in self.findings if is_overstated(found)]

    @property
    def worth_naming(self) -> list[Truth]:
        """Faults that cost at least :data:`LEAST` of the step."""
        faults = zip(self.trial.truths, self.true_ns, strict=True)
        return [truth for truth, ns in faults if ns >= LEAST * self.step_ns]

    @property
    def names_right(self) -> bool:
        """Whether the faults' ranks are named, and no others."""
        others = [found for found in self.accusations if set(found.ranks) - self.trial.ranks]
        named = [any(map(truth.is_named_by, self.accusations)) for truth in self.worth_naming]
        return all(named) and not others

    @property
    def causes_right(self) -> bool:
        """Whether the ranks are right, and their causes."""
        said = [any(map(truth.is_said_by, self.accusations)) for truth in self.worth_naming]
        return all(said) and self.names_right

    @property
    def is_first(self) -> bool:
        """Whether a fault is the first finding of the report."""
        first = self.findings[:1]
        return not self.worth_naming or any(
            truth.is_said_by(found) for truth in self.worth_naming for found in first
        )

    @property
    def is_right(self) -> bool:
        """Whether the dearest accusation is right, and none names anybody else.

        What costs less than :data:`LEAST` of the step need not be named.
        """
        if not self.trial.is_faulty:
            return not self.accusations
        if not self.accusations:
            return not self.worth_naming
        first = any(truth.is_said_by(self.accusations[0]) for truth in self.trial.truths)
        return first and self.causes_right

    @property
    def cost_errors(self) -> list[float]:
        """Of what findings put forward for each fault, relative to the truth."""
        return [
            error
            for truth, ns in zip(self.trial.truths, self.true_ns, strict=True)
            if (error := self._error(truth, ns)) is not None
        ]

    @property
    def plan_error(self) -> float | None:
        """Of what the plan gives back with all faults mended in turn, relative to the truth."""
        if self.all_ns < LEAST * self.step_ns or not self.names_right:
            return None
        # Faults that hide each other cost next to nothing alone, and a lot together.
        said = [
            next(filter(truth.is_said_by, self.accusations), None) for truth in self.trial.truths
        ]
        gains = [found.remaining_ns or 0 for found in said if found is not None]
        return sum(gains) / self.all_ns - 1

    def _error(self, truth: Truth, true_ns: float) -> float | None:
        found = next(filter(truth.is_said_by, self.accusations), None)
        if found is None or true_ns < LEAST * self.step_ns:
            return None
        said = found.recoverable_ns if found.recoverable_ns is not None else found.cost_ns_per_step
        return None if said is None else said / true_ns - 1


def is_overstated(found: Finding) -> bool:
    """Whether a finding claims more than twice what its simulation recovers."""
    if found.recoverable_ns is None or found.cost_ns_per_step is None:
        return False
    return found.cost_ns_per_step > 2 * max(found.recoverable_ns, found.remaining_ns or 0)


def report_of(recording: Recording) -> Report:
    """From recording to report."""
    run = assemble_run("simulated", recording.to_ranks())
    run = structs.replace(run, records=recording.to_records())
    return distprof.analyze(run, executor="serial", debug=True)


def judge(trial: Trial) -> Outcome:
    """Analyse the job, and simulate it without each of its faults."""
    recording = trial.job.run()
    report = report_of(recording)
    steps = {row.step for row in report.breakdown.steps}
    step_ns = recording.mean_step_ns(steps)
    sound_ns = [truth.sound.run().mean_step_ns(steps) for truth in trial.truths]
    all_ns = step_ns - sound_ns[0] if sound_ns else 0.0
    if len(sound_ns) > 1:
        all_ns = step_ns - replace(trial.job, faults=()).run().mean_step_ns(steps)
    return Outcome(
        trial=trial,
        findings=list(report.findings),
        true_ns=tuple(step_ns - without for without in sound_ns),
        all_ns=all_ns,
        step_ns=step_ns,
    )


def trial_of(build: Callable[[random.Random], Trial], seed: int) -> Trial:
    """The same job for the same seed, whatever else is tried."""
    return build(random.Random(f"{build.__name__}/{seed}"))
