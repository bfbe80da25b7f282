"""State of each rank apart from its steps: whether it is alive, its memory, its GPU's sensors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from distprof.artefacts.rank_file import AttachFile, ErrorFile, RankFile
from distprof.artefacts.records import NvmlRecord
from distprof.artefacts.run_file import Exit, Overhead
from distprof.escape import plain, shorten
from distprof.ingest.job.growing import RankAdded
from distprof.ingest.job.processes import is_running
from distprof.verbs.watch.result import MemoryOfRank, ThrottledRank

SAMPLES: Final = 300  # 30 s at the default period
LEAST_SAMPLES: Final = 20

HARMFUL: Final = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""Throttle reasons that count. The power cap does not: GPUs under full load run at it."""

TIMES: Final = "collective_times"
"""The probe that records how long collectives take on the GPU."""

_MAX_MESSAGE = 160  # characters of a message from another program


class RankWatch:
    """State of one rank.

    ``is_alive`` says whether a process runs; None if this machine cannot know.
    """

    def __init__(
        self, rank: int, is_alive: Callable[[AttachFile], bool | None] = is_running
    ) -> None:
        self.rank = rank
        self.device = ""  # Name of its accelerator, or ``cpu``; empty while unknown.
        self.coordinates: dict[str, int] = {}  # Its index along each mesh axis.
        # Why its probe does not record the durations of collectives; empty if it does, or if the
        # reason is unknown.
        self.why_untimed = ""
        self.probe_cost: Overhead | None = None  # Of its always-on probes; None until measured.
        self.has_ended = False  # Whether its probes stopped cleanly.
        self.last_step: int | None = None  # Last step that it completed; None before the first.
        self.ended_ns = 0  # End of that step on its own clock, ns since the epoch.
        self.seen_s = 0.0  # When the watcher saw that step, on a monotonic clock, seconds.
        self._is_alive = is_alive
        self._error: ErrorFile | None = None
        self._exit: Exit | None = None
        self._process: AttachFile | None = None
        self._was_alive = False
        self._samples: deque[NvmlRecord] = deque(maxlen=SAMPLES)
        self._memory: MemoryOfRank | None = None

    def take(self, added: RankAdded) -> None:
        """Update everything but steps."""
        if added.said is not None:
            self.device, self.coordinates = added.said.device, added.said.coordinates
            self.has_ended = added.said.ended_ns is not None
            self.why_untimed = _why_untimed(added.said)
            always_on = (each for each in added.said.overhead if each.mode == "always_on")
            self.probe_cost = next(always_on, None)
        self._error = added.error or self._error
        self._exit = added.exit or self._exit
        self._process = added.process or self._process
        self._samples.extend(added.samples)
        for record in added.memory[-1:]:
            used = record.allocated_bytes
            where = "process" if used is None else "device"
            used = record.rss_bytes if used is None else used
            if used is not None:
                self._memory = MemoryOfRank(
                    rank=self.rank,
                    used_bytes=used,
                    where="device" if where == "device" else "process",
                )

    def begin_again(self) -> None:
        """Forget its last step and how it ended: the rank was restarted."""
        self.last_step = None
        self._error = self._exit = None

    def take_exit(self, found: Exit | None) -> None:
        """Record how its process ended, if run.json says so."""
        self._exit = found or self._exit

    @property
    def memory(self) -> MemoryOfRank | None:
        """Latest memory use; None if unknown."""
        return self._memory

    @property
    def can_report(self) -> bool:
        """Whether it may still report steps."""
        return not self.has_ended and not self.loss

    @property
    def loss(self) -> str:
        """Evidence that the rank is lost, in one sentence; empty if there is none."""
        error, ended = self._error, self._exit
        if error is not None:
            message = f"{error.kind}: {shorten(plain(error.message), _MAX_MESSAGE)}"
            return "" if error.is_peer_loss else plain(message)
        if ended is not None and not ended.by_launcher:
            if ended.signal:
                return f"killed by {plain(ended.signal)}"
            if ended.code:
                return f"exited with code {ended.code}"
        return ""

    def is_gone(self) -> bool:
        """Whether its process was seen alive on this machine and is gone without an error."""
        if self._process is None or self.has_ended or self._error or self._exit:
            return False
        alive = self._is_alive(self._process)
        self._was_alive = self._was_alive or alive is True
        return self._was_alive and alive is False

    def throttled(self) -> ThrottledRank | None:
        """How often heat or hardware throttled its GPU; None if it did not, or if unknown."""
        known = [each for each in self._samples if each.throttle_reasons is not None]
        reasons = Counter(
            reason for each in known for reason in each.throttle_reasons or () if reason in HARMFUL
        )
        if len(known) < LEAST_SAMPLES or not reasons:
            return None
        num_throttled = sum(not HARMFUL.isdisjoint(each.throttle_reasons or ()) for each in known)
        return ThrottledRank(
            rank=self.rank,
            throttled_ratio=num_throttled / len(known),
            reasons=tuple(reason for reason, _ in reasons.most_common()),
            sm_clock_mhz=known[-1].sm_clock_mhz,
        )


def _why_untimed(file: RankFile) -> str:
    for probe in file.probes:
        if probe.name == TIMES:
            return shorten(plain(probe.reason), _MAX_MESSAGE)
    return ""
