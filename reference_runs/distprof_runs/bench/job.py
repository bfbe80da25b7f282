"""One benchmark, from the user's options to the saved and shown profile and the exit code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from distprof_probes.environment import Placement, placement
from distprof_probes.job.ending import JOB_FAILED
from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.messages import print_failure, say, shown_path
from distprof_probes.job.supervise import Patience, Supervisor
from distprof_probes.options import RUN_DIR_VARIABLE

from distprof.artefacts.fabric_file import FABRIC_FILE, FabricFile
from distprof.artefacts.files import keep_scratch, scratch
from distprof.errors import InputError, MissingExtraError, UsageError
from distprof_runs.bench.plan import PLAN_VARIABLE, Plan
from distprof_runs.launching.preparation import check_port, is_rank_already, on_this_machine
from distprof_runs.launching.starting import run_ranks
from distprof_runs.settings import Settings

_WORKER = (sys.executable, "-m", "distprof_probes.job.rank_main", "distprof_runs.bench.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """The user's choices for the profile."""

    out: Path | None = None  # The output file; None for none.
    force: bool = False  # Whether to overwrite an existing file.
    arguments: tuple[str, ...] = ()  # Arguments for ``distprof fabric``.
    quiet: bool = False  # Write only errors to stderr.

    def check(self) -> None:
        """Find errors before the measurement that would otherwise show after it.

        Raises:
            UsageError: If the file exists or its folder does not.
        """
        if self.out is None:
            return
        if self.out.is_dir() or (self.out.exists() and not self.force):
            raise UsageError(
                f"{self.out} exists: add --force to overwrite it, or choose another file"
            )
        if not self.out.parent.is_dir():
            raise UsageError(f"{self.out.parent} is not a folder: create it first")


def run_bench(settings: Settings, plan: Plan, showing: Showing) -> int:
    """Measure, save and show.

    Of the settings, only the launch options and the device are used. Returns the exit code: 0, 4
    for a failed job, 130 or 143 when interrupted.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("distprof bench", "run")
    place, launch = placement(), settings.launch
    if is_rank_already(settings, place):
        return _as_rank(plan, showing, place)
    if launch.world_size < 2:
        raise UsageError("a benchmark needs at least 2 ranks: use --ranks 2 or more")
    if launch.this_node == 0:
        showing.check()
        if launch.rdzv_endpoint:
            check_port(launch.rdzv_endpoint)
    settings = on_this_machine(settings, quiet=showing.quiet)
    device = settings.configuration.training.device
    plan = msgspec.structs.replace(plan, device=device)
    sizes = plan.sizes(launch.world_size, "cuda" if device == "cuda" else "cpu")
    ranks = f"{launch.world_size} {device.upper()} ranks"
    say(
        f"measuring {len(plan.kinds)} collectives at {len(sizes)} sizes on {ranks}",
        quiet=showing.quiet,
    )
    with scratch("bench") as folder:
        code = _launched(folder, settings, plan, showing)
        if code == JOB_FAILED:  # to show the output of the ranks
            keep_scratch(folder)
        return code


def run_compute(device: str, showing: Showing) -> int:
    """Measure what one device reaches alone, save and show it.

    The file keeps the collectives of a profile that is already there.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("distprof bench", "run")
    showing.check()
    there = showing.out is not None and showing.out.exists()
    before = _profile(showing.out) if showing.out is not None and there else None
    say("measuring matrix products and memory, for about a minute", quiet=showing.quiet)
    with scratch("bench") as folder:
        result = folder / FABRIC_FILE
        command = [sys.executable, "-m", "distprof_runs.bench.compute", str(result), device]
        if subprocess.run(command, check=False).returncode != 0:
            return JOB_FAILED
        if before is not None and before.curves:
            _add_speeds(result, before)
        return _deliver(result, showing)


def _profile(file: Path) -> FabricFile:
    """The profile that gets new speeds."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=FabricFile)
    except (OSError, ValueError) as error:
        raise InputError(
            str(file),
            expected="a fabric profile, to which --compute adds speeds",
            found=str(error)[:200],
            fix="choose another file",
        ) from error


def _add_speeds(result: Path, before: FabricFile) -> None:
    """Write the profile of before with the speeds of the new one."""
    found = _profile(result)
    if before.device != found.device:
        raise UsageError(
            f"the profile to extend was measured on {before.device}, this device is "
            f"{found.device}: choose another file"
        )
    whole = msgspec.structs.replace(
        before,
        rates=found.rates,
        memory_bytes_per_s=found.memory_bytes_per_s,
        notes=tuple(dict.fromkeys((*before.notes, *found.notes))),
    )
    result.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2))


def _launched(folder: Path, settings: Settings, plan: Plan, showing: Showing) -> int:
    """Run this node's ranks to their end; on the first node, show the profile."""
    result = folder / FABRIC_FILE
    plan = msgspec.structs.replace(plan, result=str(result))
    supervisor = Supervisor(folder, Patience.of(plan.timeout_s))
    with Interrupts(lambda text: say(text, quiet=showing.quiet)) as interrupts:
        problem = run_ranks(
            _WORKER,
            run_dir=folder,
            environment={RUN_DIR_VARIABLE: str(folder), PLAN_VARIABLE: _text(plan)},
            launch=settings.launch,
            supervisor=supervisor,
            interrupts=interrupts,
        )
        failure = supervisor.failure()
        if failure is not None or problem:
            if failure is not None:
                print_failure(folder, failure)
            say(problem or f"Output of the ranks: {shown_path(folder)}")
            return JOB_FAILED
        if interrupts.signal is not None:
            return interrupts.exit_code
    if settings.launch.this_node != 0:
        return 0
    return _deliver(result, showing)


def _text(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def _as_rank(plan: Plan, showing: Showing, place: Placement) -> int:
    """Run as one rank of a job launched by torchrun, srun or mpirun; rank 0 shows the profile."""
    from distprof_runs.launching.as_rank import torch_variables

    if (place.world_size or 1) < 2:
        raise UsageError("a benchmark needs at least 2 ranks: launch 2 or more")
    if place.rank == 0:
        showing.check()
    with scratch("bench") as folder:
        result = folder / FABRIC_FILE
        plan = msgspec.structs.replace(plan, result=str(result))
        told = {**os.environ, **torch_variables(place), PLAN_VARIABLE: _text(plan)}
        command = [sys.executable, "-m", "distprof_runs.bench.worker"]
        ended = subprocess.run(command, env=told, check=False)
        if ended.returncode != 0:
            return ended.returncode if ended.returncode in (2, 130) else JOB_FAILED
        return _deliver(result, showing) if place.rank == 0 else 0


def _deliver(result: Path, showing: Showing) -> int:
    """Save the profile as requested, and show it."""
    if showing.out is None:  # the file is temporary: do not name it
        with result.open("rb") as profile:
            return show(Path("-"), showing.arguments, profile)
    partial = showing.out.with_name(f".{showing.out.name}.partial")
    try:
        shutil.copyfile(result, partial)
        partial.replace(showing.out)
    except OSError as error:
        raise UsageError(f"{showing.out} cannot be written: {error.strerror}") from error
    code = show(showing.out, showing.arguments)
    shown = shown_path(showing.out)
    say(f"Wrote {shown}. Next: distprof analyze RUN --fabric {shown}", quiet=showing.quiet)
    return code


def show(file: Path, arguments: Sequence[str] = (), profile: BinaryIO | None = None) -> int:
    """Show a profile on this terminal with ``distprof fabric`` in a separate process.

    ``-`` reads it from ``profile``, the standard input of that process.
    """
    sys.stdout.flush()
    command = [sys.executable, "-m", "distprof", "fabric", str(file), *arguments]
    return subprocess.run(command, stdin=profile, check=False).returncode
