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
from typing import Any, BinaryIO, NamedTuple

from distprof.artefacts import LIGHT_TRACE_FILE, TRACE_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.probe import Recording, Traced, Tracer, Unavailable, Yielded
from distprof_probes.probes.exported import ExportWatch
from distprof_probes.probes.memory import resident_bytes

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
    """

    def __init__(self, give_way: Callable[[], None], is_in_use: Callable[[], bool]) -> None:
        # Whether the latest profiler other than distprof's was one on demand.
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
        """Another profiler begins; RuntimeError if on demand while distprof's is in use."""
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
    """A trace that was written."""

    num_bytes: int  # Size of the compressed file.
    has_device_events: bool  # Whether it contains GPU work.


def save_trace(profile: Any, path: Path, *, cut_step: int | None = None) -> SavedTrace:
    """Write the recording of a stopped torch profile to a file that ends in ``.json.gz``.

    ``cut_step`` is a step that had not ended when recording stopped. Its mark is renamed, so that
    no reader mistakes the part for the whole. If the disk does not accept all of it, nothing is
    left behind.
    """
    plain = path.with_name(f".trace-{os.getpid()}.part.json")
    packed = path.with_name(f".trace-{os.getpid()}.part.json.gz")
    try:
        profile.export_chrome_trace(str(plain))
        _check_whole(plain)
        saved = _compress(plain, packed, cut_step, path.name)
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


def _compress(plain: Path, packed: Path, cut_step: int | None, packed_name: str) -> SavedTrace:
    has_device_events = False
    # torch writes the path of its file as a name and does not escape quotation marks.
    name_as_written, name = b'"' + os.fsencode(plain) + b'"', b'"%s"' % packed_name.encode()
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


class _Window(NamedTuple):
    """Steps that one profiler records."""

    what: Traced  # ``light``, the GPU alone; ``full``, the CPU, too.
    warmup: range  # Steps in which it runs and its records are discarded.
    steps: range  # Steps to record.
    file: str  # Name of the trace.


class ProfilerProbe(Tracer):
    """Writes ``trace.json.gz``, and before it ``trace-light.json.gz`` on GPU ranks."""

    name = "profiler"

    def __init__(self) -> None:
        super().__init__()
        # Steps recorded from start to end, by what was recorded.
        self.recorded_steps: dict[Traced, list[int]] = {"light": [], "full": []}
        self._session: Recording
        self._windows: list[_Window] = []
        self._profile: Any = None
        self._is_recording = False
        self._mark: AbstractContextManager[Any] | None = None
        self._marked_step = -1
        self._thread = 0
        self._resident_at_start = 0
        self._watch = UserProfilerWatch(self._give_way, lambda: self._profile is not None)
        self._exports: ExportWatch | None = None
        self._has_given_way = False

    def start(self, session: Recording) -> None:
        """Check whether tracing can work here; it starts later, by step number."""
        self._session = session
        plan = session.plan
        windows = (
            _Window("light", plan.light_warmup, plan.light, LIGHT_TRACE_FILE),
            _Window("full", plan.warmup, plan.traced, TRACE_FILE),
        )
        self._windows = [window for window in windows if window.steps]
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
                target, lambda: self._has_given_way and not self.recorded_steps["full"]
            )
            self._exports.install()

    def between_steps(self, next_step: int) -> bool:
        """Arm, start or end the recording, as the next step requires."""
        if self._has_given_way:
            raise Yielded(self._why_yielded())
        took_long = False
        if self._is_recording and (next_step >= self._windows[0].steps.stop or self._is_too_big()):
            self._finish()
            took_long = True
        window = self._next_window(next_step)
        if window is None:
            return took_long
        if self._profile is None and (next_step in window.warmup or next_step in window.steps):
            self._arm(window)
            took_long = True
        if not self._is_recording and next_step in window.steps and self._profile is not None:
            self._record()
            took_long = True
        return took_long

    def _next_window(self, next_step: int) -> _Window | None:
        """The window that is being recorded or comes next; only GPU ranks have light steps."""
        while self._windows and self._profile is None:
            window = self._windows[0]
            is_reached = next_step >= min([*window.warmup, window.steps.start])
            is_light = window.what == "light" and is_reached and "torch" in sys.modules
            lacks_gpu = is_light and not _uses_cuda()
            if next_step < window.steps.stop and not lacks_gpu:
                break
            del self._windows[0]
        return self._windows[0] if self._windows else None

    def step_started(self, step: int) -> None:
        """Open the mark by which readers find steps; a recording of the GPU alone has none."""
        if self._is_recording:
            self._marked_step = step
            if self._windows[0].what == "full":
                self._mark = _entered(f"ProfilerStep#{step}")

    def end_mark(self, step: int) -> Traced:
        """Close the step's mark."""
        if not self._is_recording or self._marked_step != step:
            return ""
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)
        self._marked_step = -1
        what = self._windows[0].what
        self.recorded_steps[what].append(step)
        return what

    def open_mark(self, name: str) -> AbstractContextManager[Any] | None:
        """A mark for a phase; waiting for input gets the name that readers expect."""
        if not self._is_recording or self._windows[0].what == "light":
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
        elif self._windows and not self.recorded_steps["full"] and not self.remark:
            first = self._session.plan.traced.start
            self.remark = (
                f"nothing was traced: the job ended before step {first}; give an earlier start_step"
            )
        if self._exports is not None and not self._has_given_way:
            self._exports.remove()
        self._disarm()
        self._windows, self._is_recording = [], False

    def status(self) -> ProbeStatus:
        """Records are steps."""
        self.num_records = sum(map(len, self.recorded_steps.values()))
        return super().status()

    # Steps of its life ----------------------------------------------------------------------------

    def _arm(self, window: _Window) -> None:
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
        self._profile = _make_profile(self._session, window)
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
        cut_step = self._marked_step if self._marked_step >= 0 else None
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        window = self._windows.pop(0)
        self._is_recording, self._marked_step = False, -1
        profile = self._profile
        with self._watch.ours(), self._torn_down():
            profile.stop_trace()
        self._profile = None
        self._watch.remove()
        steps = self.recorded_steps[window.what]
        if steps:
            saved = save_trace(profile, self._session.rank_dir / window.file, cut_step=cut_step)
            self._remember(window, saved)

    @contextmanager
    def _torn_down(self) -> Iterator[None]:
        """Detach CUPTI at the last stop: attached, it makes each launch slower."""
        why_not = "" if not self._windows else "more steps follow"
        why_not = why_not or _why_no_teardown()
        if why_not:
            if not self._windows and _uses_cuda():
                self._session.note(f"CUPTI stays attached after tracing: {why_not}")
            yield
            return
        os.environ[_TEARDOWN] = "1"
        try:
            yield
        finally:
            os.environ.pop(_TEARDOWN, None)

    def _remember(self, window: _Window, saved: SavedTrace) -> None:
        planned, recorded = len(window.steps), len(self.recorded_steps[window.what])
        if recorded < planned and not self.remark:
            self.remark = f"{recorded} of {planned} steps were traced"
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
        window = self._windows[0]
        self.remark = (
            f"stopped after {len(self.recorded_steps[window.what])} of {len(window.steps)} steps:"
            f" the process grew by {grown / 1e6:.0f} MB, {limit / 1e6:.0f} allowed (max_growth_mb)"
        )
        return True

    # The user's own profiler ----------------------------------------------------------------------

    def _give_way(self) -> None:
        """The user's profiler is about to start, perhaps in the middle of a traced step."""
        if self._has_given_way or not self._windows:
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
        steps = self.recorded_steps["full"]
        kept = f"; {len(steps)} steps were traced before" if steps else ""
        lost = f"; {self.remark}" if self.remark else ""
        used = "" if steps else "; the first trace that it exports is used instead"
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


_TEARDOWN, _NO_LAZY_START = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
_SAFE_CUDA = (12, 6)  # from here on CUDA graphs survive it (pytorch pull request 146604)


def _why_no_teardown() -> str:
    """Why CUPTI may not be detached from this process; empty if it may."""
    if not _uses_cuda():
        return "there is no CUDA"
    if _TEARDOWN in os.environ or _NO_LAZY_START in os.environ:
        return f"{_TEARDOWN} or {_NO_LAZY_START} is set"
    version = str(sys.modules["torch"].version.cuda or "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _SAFE_CUDA:
        return f"with CUDA {version or 'of an unknown version'}, CUDA graphs would not survive it"
    return ""


def _make_profile(session: Recording, window: _Window) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler.profiler import _KinetoProfile

    options = session.options
    is_full = window.what == "full"
    activities = [ProfilerActivity.CPU] if is_full else []
    if _uses_cuda():
        activities.append(ProfilerActivity.CUDA)
    with_stack = is_full and options.stacks
    profile = _KinetoProfile(
        activities=activities,
        record_shapes=is_full and options.shapes,
        with_stack=with_stack,
        profile_memory=is_full and options.profile_memory,
        experimental_config=None if with_stack else _trace_only(),
    )
    profile.preset_metadata_json("distprof", json.dumps(_metadata(session, window)))
    return profile


def _trace_only() -> Any:
    """Ask torch (newer versions) not to build its own events, which halves the time to stop."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


def _metadata(session: Recording, window: _Window) -> dict[str, Any]:
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
        "first_step": window.steps.start,
        "kind": window.what,
    }
