"""Runs torch.profiler over a window of steps, the same on all ranks."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from distprof.artefacts import TRACE_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.probe import Tracer, Unavailable, Yielded
from distprof_probes.probes.exported import ExportWatch
from distprof_probes.probes.memory import resident_bytes

if TYPE_CHECKING:
    from distprof_probes.session import Session

__all__ = [
    "ProfilerProbe",
    "SavedTrace",
    "UserProfilerWatch",
    "is_profiler_running",
    "save_trace",
    "tool_that_holds_cupti",
]

_ENTRANCES = ("_prepare_profiler", "_enable_profiler")
_ON_DEMAND = ("torch.distributed.debug._handlers", "_torch_profile")

# Set by tools that attach to CUDA through CUPTI; the driver allows one at a time.
_CUPTI_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a tool injected with CUDA_INJECTION64_PATH",
}


def is_profiler_running() -> bool:
    """Whether a torch profiler records in this thread, or in any thread if torch can tell."""
    torch = sys.modules["torch"]
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
    if enabled is not None and enabled():
        return True
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def tool_that_holds_cupti() -> str:
    """Name of the tool that holds CUPTI in this process; empty if none is known."""
    return next((tool for name, tool in _CUPTI_TOOLS.items() if os.environ.get(name)), "")


class UserProfilerWatch:
    """Calls back before the program prepares or starts its own profiler.

    A trace on demand does not count: ``distprof attach`` requested it, and waits for the window.

    Args:
        give_way: Must stop distprof's profiler; it must not raise.
        is_in_use: Whether distprof's profiler is prepared or records.

    Attributes:
        is_on_demand: Whether the latest profiler other than distprof's was one on demand.
    """

    def __init__(self, give_way: Callable[[], None], is_in_use: Callable[[], bool]) -> None:
        self.is_on_demand = False
        self._give_way = give_way
        self._is_in_use = is_in_use
        self._ours = threading.local()
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def install(self) -> None:
        """Start to watch; does nothing with a torch that lacks these functions."""
        module = sys.modules["torch"].autograd.profiler
        for name in _ENTRANCES:
            original = getattr(module, name, None)
            if original is not None and name not in self._replaced:
                watched = self._watched(original)
                self._replaced[name] = (original, watched)
                setattr(module, name, watched)

    def remove(self) -> None:
        """Restore everything, unless other code has wrapped it since."""
        if not self._replaced:
            return
        module = sys.modules["torch"].autograd.profiler
        for name, (original, watched) in self._replaced.items():
            if getattr(module, name) is watched:
                setattr(module, name, original)
        self._replaced.clear()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Marks a profiler started inside the block as distprof's own."""
        self._ours.is_inside = True
        try:
            yield
        finally:
            self._ours.is_inside = False

    def _other_begins(self) -> None:
        """Another profiler begins.

        Raises:
            RuntimeError: If it is one on demand while distprof's is in use.
        """
        self.is_on_demand = _is_asked_by_attach()
        if not self.is_on_demand:
            self._give_way()
        elif self._is_in_use():
            raise RuntimeError("distprof traces the capture window of this rank: ask again later")

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def watched(*args: Any, **keywords: Any) -> Any:
            if self._replaced and not getattr(self._ours, "is_inside", False):
                self._other_begins()
            return original(*args, **keywords)

        return watched


def _is_asked_by_attach() -> bool:
    """Whether torch's worker server is about to trace on demand, in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == _ON_DEMAND[1] and module == _ON_DEMAND[0]:
            return True
        frame = frame.f_back
    return False


# Saving a recorded trace: whole or not at all ----------------------------------------------------

_CHUNK_BYTES = 1 << 22

_LEVEL = 3  # zlib: a third larger than level 6, in little more than half the time

_DEVICE_EVENT = re.compile(rb'"cat": ?"(kernel|gpu_memcpy|gpu_memset)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTrace:
    """A trace that was written.

    Args:
        num_bytes: Size of the compressed file.
        has_device_events: Whether it contains GPU work.
    """

    num_bytes: int
    has_device_events: bool


def save_trace(profile: Any, path: Path, *, cut_step: int | None = None) -> SavedTrace:
    """Write the recording of a stopped torch profile.

    Args:
        profile: A ``torch.profiler._KinetoProfile``.
        path: The output file, ending in ``.json.gz``.
        cut_step: A step that had not ended when recording stopped. Its mark is renamed, so that
            no reader mistakes the part for the whole.

    Raises:
        OSError: If the disk does not accept all of it; nothing is left behind.
    """
    plain = path.with_name(f".trace-{os.getpid()}.part.json")
    packed = path.with_name(f".trace-{os.getpid()}.part.json.gz")
    try:
        profile.export_chrome_trace(str(plain))
        _check_whole(plain)
        saved = _compress(plain, packed, cut_step)
        packed.replace(path)
    finally:
        for part in (plain, plain.with_name(f"{plain.name}.tmp"), packed):  # .tmp is torch's own
            part.unlink(missing_ok=True)
    return saved


def _check_whole(plain: Path) -> None:
    """Check that the file exists and ends with a brace: torch does not report a full disk."""
    if not plain.exists():
        raise OSError("the disk did not accept the trace: torch wrote none")
    with plain.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(-min(file.tell(), 64), os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the disk did not accept the whole trace ({plain.stat().st_size} bytes)")


def _compress(plain: Path, packed: Path, cut_step: int | None) -> SavedTrace:
    has_device_events = False
    # torch writes the path of its file as a name and does not escape quotation marks.
    name_as_written, name = b'"' + os.fsencode(plain) + b'"', b'"%s"' % TRACE_FILE.encode()
    compressor = zlib.compressobj(_LEVEL, wbits=31)
    with plain.open("rb") as source, packed.open("wb") as target:
        for lines in _whole_lines(source):
            has_device_events = has_device_events or bool(_DEVICE_EVENT.search(lines))
            lines = lines.replace(name_as_written, name)
            if cut_step is not None:
                lines = lines.replace(
                    b'"ProfilerStep#%d"' % cut_step, b'"distprof:cut step=%d"' % cut_step
                )
            target.write(compressor.compress(lines))
        target.write(compressor.flush())
    return SavedTrace(num_bytes=packed.stat().st_size, has_device_events=has_device_events)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Chunks that end at the end of a line, so that no searched text is split."""
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = b""
        rest += chunk[end:]
    yield rest


_ON_DEMAND_REMARK = "nothing was traced: a trace on demand (distprof attach) ran at that time"

# torch.profiler over a window of steps that all ranks agree on by number -------------------------

# A quotation mark in a name makes torch write broken JSON: names keep only these characters.
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_:.=;,\[\] -]")


class ProfilerProbe(Tracer):
    """Writes ``trace.json.gz``.

    Attributes:
        traced_steps: Steps recorded from start to end.
    """

    name = "profiler"

    def __init__(self) -> None:
        super().__init__()
        self.traced_steps: list[int] = []
        self._session: Session
        self._profile: Any = None
        self._is_recording = False
        self._is_done = False
        self._mark: AbstractContextManager[Any] | None = None
        self._marked_step = -1
        self._thread = 0
        self._resident_at_start = 0
        self._watch = UserProfilerWatch(self._give_way, lambda: self._profile is not None)
        self._exports: ExportWatch | None = None
        self._has_given_way = False

    def start(self, session: Session) -> None:
        """Check whether tracing can work here; it starts later, by step number."""
        self._session = session
        tool = tool_that_holds_cupti()
        if tool:
            raise Unavailable(f"{tool} uses CUPTI, which serves one tool at a time")
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it prints a line per start
        if "torch" in sys.modules:
            self._watch.install()
            self._watch_exports()

    def _watch_exports(self) -> None:
        """Keep an export of the program's own profiler if distprof traced nothing."""
        if self._exports is None:
            target = self._session.rank_dir / TRACE_FILE
            self._exports = ExportWatch(
                target, lambda: self._has_given_way and not self.traced_steps
            )
            self._exports.install()

    def between_steps(self, next_step: int) -> bool:
        """Arm, start or end the recording, as the next step requires."""
        plan = self._session.plan
        if self._has_given_way:
            raise Yielded(self._why_yielded())
        if self._is_done:
            return False
        arms = self._profile is None and (next_step in plan.warmup or next_step in plan.traced)
        starts = not self._is_recording and next_step in plan.traced
        ends = self._is_recording and (next_step >= plan.traced.stop or self._is_too_big())
        if arms:
            self._arm()
        if starts and self._profile is not None:
            self._record()
        if ends:
            self._finish()
        return arms or starts or ends

    def step_started(self, step: int) -> None:
        """Open the mark by which readers find steps."""
        if self._is_recording:
            self._marked_step = step
            self._mark = _entered(f"ProfilerStep#{step}")

    def end_mark(self, step: int) -> bool:
        """Close the step's mark."""
        if self._mark is None:
            return False
        mark, self._mark = self._mark, None
        mark.__exit__(None, None, None)
        self.traced_steps.append(step)
        return True

    def open_mark(self, name: str) -> AbstractContextManager[Any] | None:
        """A mark for a phase; waiting for input gets the name that readers expect."""
        if not self._is_recording:
            return None
        if name == "input":
            return _entered("distprof:input")
        return _entered(f"distprof:phase name={_plain(name)}")

    def stop(self) -> None:
        """End early and keep the recording."""
        if self._is_recording and threading.get_ident() == self._thread:
            self._finish()
        elif self._is_recording:
            self._profile = None  # torch requires the thread that started a profiler to stop it
            self.remark = "the trace is lost: the session was closed from another thread"
        elif not self._is_done and not self.traced_steps and not self.remark:
            first = self._session.plan.traced.start
            self.remark = (
                f"nothing was traced: the job ended before step {first}; give an earlier start_step"
            )
        if self._exports is not None and not self._has_given_way:
            self._exports.remove()
        self._disarm()
        self._is_done, self._is_recording = True, False

    def status(self) -> ProbeStatus:
        """Records are steps."""
        self.num_records = len(self.traced_steps)
        return super().status()

    # Steps of its life ----------------------------------------------------------------------------

    def _arm(self) -> None:
        if "torch" not in sys.modules:
            raise Unavailable("torch is not imported in this process")
        if is_profiler_running():
            if self._watch.is_on_demand:  # it ends soon
                self.remark = _ON_DEMAND_REMARK
                return
            raise Yielded("the program's own profiler was running")
        self.remark = ""
        self._watch.install()
        self._watch_exports()
        self._thread = threading.get_ident()
        self._profile = _make_profile(self._session)
        with self._watch.ours(), warnings.catch_warnings():
            # torch 2.11 also warns about a first cycle, on the stderr of a program that did not ask
            # for it
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            self._profile.prepare_trace()

    def _record(self) -> None:
        if is_profiler_running():
            raise Yielded("the program's own profiler was running")
        self._resident_at_start = resident_bytes() or 0
        with self._watch.ours():
            self._profile.start_trace()
        self._is_recording = True

    def _finish(self) -> None:
        """Stop recording, save, and release everything."""
        cut_step = self._marked_step if self._mark is not None else None
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        self._is_recording, self._is_done = False, True
        profile = self._profile
        with self._watch.ours():
            profile.stop_trace()
        self._profile = None
        self._watch.remove()
        if self.traced_steps:
            saved = save_trace(profile, self._session.rank_dir / TRACE_FILE, cut_step=cut_step)
            self._remember(saved)

    def _remember(self, saved: SavedTrace) -> None:
        planned = len(self._session.plan.traced)
        if len(self.traced_steps) < planned and not self.remark:
            self.remark = f"{len(self.traced_steps)} of {planned} steps were traced"
        if not saved.has_device_events and _uses_cuda():
            self.remark = "the trace holds no kernels: does another tool hold CUPTI?"

    def _disarm(self) -> None:
        """Leave no armed profiler behind: torch can only stop one that has started."""
        profile, self._profile = self._profile, None
        if profile is not None and threading.get_ident() == self._thread:
            with self._watch.ours():
                profile.start_trace()
                profile.stop_trace()
        self._watch.remove()

    def _is_too_big(self) -> bool:
        grown = (resident_bytes() or 0) - self._resident_at_start
        limit = self._session.options.max_growth_mb * 1_000_000
        if grown < limit:
            return False
        self.remark = (
            f"stopped after {len(self.traced_steps)} of {len(self._session.plan.traced)} steps:"
            f" the process grew by {grown / 1e6:.0f} MB, {limit / 1e6:.0f} allowed (max_growth_mb)"
        )
        return True

    # The user's own profiler ----------------------------------------------------------------------

    def _give_way(self) -> None:
        """The user's profiler is about to start, perhaps in the middle of a traced step."""
        if self._has_given_way or self._is_done:
            return
        self._has_given_way = True
        try:
            if self._is_recording and threading.get_ident() == self._thread:
                self._finish()
            else:
                self._disarm()
        except Exception as error:
            self.remark = f"the recording until then is lost: {error}"
        self._watch.remove()

    def _why_yielded(self) -> str:
        kept = f"; {len(self.traced_steps)} steps were traced before" if self.traced_steps else ""
        lost = f"; {self.remark}" if self.remark else ""
        used = "" if self.traced_steps else "; the first trace that it exports is used instead"
        return f"the program started its own profiler{kept}{lost}{used}"


def _plain(name: str) -> str:
    return _FORBIDDEN.sub("_", name)


def _entered(name: str) -> AbstractContextManager[Any]:
    mark: AbstractContextManager[Any] = sys.modules["torch"].autograd.profiler.record_function(name)
    mark.__enter__()
    return mark


def _uses_cuda() -> bool:
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _make_profile(session: Session) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    options = session.options
    activities = [ProfilerActivity.CPU]
    if _uses_cuda():
        activities.append(ProfilerActivity.CUDA)
    profile = _KinetoProfile(
        activities=activities,
        record_shapes=options.shapes,
        with_stack=options.stacks,
        profile_memory=options.profile_memory,
        experimental_config=None if options.stacks else _trace_only(),
    )
    profile.preset_metadata_json("distprof", json.dumps(_metadata(session)))
    return profile


def _trace_only() -> Any:
    """Ask torch (newer versions) not to build its own events, which halves the time to stop."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


def _metadata(session: Session) -> dict[str, Any]:
    """Facts about the rank for the trace, in addition to torch's ``distributedInfo``.

    torch drops the backslashes of escaped characters, so texts keep only those that need none.
    """
    place = session.placement
    sizes, coordinates = session.mesh.sizes, session.mesh.coordinates
    return {
        "rank": place.rank,
        "world_size": place.world_size,
        "local_rank": place.local_rank,
        "node": place.node,
        "host": _plain(place.host),
        "mesh": {_plain(axis): size for axis, size in sizes.items()},
        "coordinates": {_plain(axis): index for axis, index in coordinates.items()},
        "first_step": session.plan.traced.start,
    }
