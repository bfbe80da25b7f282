"""``distprof doctor``: checks the installation, and what distprof can use on this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option
from distprof.cli.output import has_color, to_stdout
from distprof.escape import plain
from distprof.kernel import explain
from distprof.processors import available_processors
from distprof.units import format_bytes
from distprof.version import __version__

_REQUIRED = (
    *("click", "fsspec", "isal", "markdown-it-py", "msgspec", "numpy", "pandas", "pyarrow"),
    "rich",
)
_NOT_EVERYWHERE = {"isal": "zlib decompresses gzip instead, which is slower"}
"""Required packages that some CPU architectures lack, and what happens without them."""
_EXTRAS = {
    "run": "torch",
    "hta": "hta",
    "dask": "distributed",
    "s3": "s3fs",
    "gcs": "gcsfs",
    "azure": "adlfs",
    "mcp": "mcp",
    "otel": "opentelemetry.sdk",
    "prometheus": "prometheus_client",
    "lightning": "lightning",
    "transformers": "transformers",
}
_ALL = "all"
"""The extra that contains all others."""

_TOOLKITS = ("cuda", "rocm", "hip", "xpu")
"""Toolkits that torch may be built for, as named in its ``version.py``."""
_UNIX_SOCKETS = Path("/proc/net/unix")
_KINETO_CONFIG = Path("/etc/libkineto.conf")
_FEW_FREE_BYTES = 2 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str  # What was checked.
    # ``ok``, ``absent`` (something optional is not installed) or ``problem``.
    state: Literal["ok", "absent", "problem"]
    found: str  # What was found.
    fix: str = ""  # How to fix a problem, or the command that installs the absent package.


@click.command()
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format.",
)
@debug_option
def doctor(format_name: str) -> int:
    """Check this installation: versions, extras, cache, GPU. Exit code 1 if there are problems."""
    checks = list(all_checks())
    problems = sum(check.state == "problem" for check in checks)
    if format_name == "json":
        content = {"problems": problems, "checks": [asdict(check) for check in checks]}
        to_stdout(json.dumps(content, indent=2) + "\n", "json")
        return ExitCode.FINDINGS if problems else ExitCode.FINE
    to_stdout("".join(_line(check) for check in checks))
    summary = f"{problems} problem{'s' if problems != 1 else ''}" if problems else "no problems"
    to_stdout(f"\n{summary}\n")
    return ExitCode.FINDINGS if problems else ExitCode.FINE


def all_checks() -> Iterator[Check]:
    """Every check, in the order shown."""
    parts: tuple[Callable[[], Iterator[Check]], ...] = (
        _versions,
        _torch,
        _on_demand,
        _extras,
        _plugins,
        _cache,
        _device,
        _machine,
    )
    for part in parts:
        yield from part()


def _versions() -> Iterator[Check]:
    yield Check(name="distprof", state="ok", found=__version__)
    yield Check(
        name="python",
        state="ok",
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    )
    for name in _REQUIRED:
        yield _package(name, _version_of(name))
    is_used, found = explain()
    yield Check(name="kernel", state="ok" if is_used else "absent", found=found)


def _package(name: str, version: str | None) -> Check:
    """Check a package that distprof requires; its version is None if it is not installed."""
    if version is not None:
        return Check(name=name, state="ok", found=version)
    if name in _NOT_EVERYWHERE:
        return Check(name=name, state="absent", found=f"not installed: {_NOT_EVERYWHERE[name]}")
    return Check(name=name, state="problem", found="not installed", fix=f"pip install {name}")


def _torch() -> Iterator[Check]:
    """The build of torch and its NCCL version, read without importing torch (takes seconds)."""
    version = _version_of("torch")
    if version is None:
        yield Check(name="torch", state="absent", found="only recording needs it")
        return
    built = _built_for()
    yield Check(name="torch", state="ok", found=f"{version}, {built}" if built else version)
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.startswith(("nvidia-nccl", "rccl")):
            yield Check(name="nccl", state="ok", found=f"{distribution.version} ({name})")


def _built_for() -> str:
    """For example ``CUDA 13.0`` or ``CPU only``; empty if torch does not say."""
    try:
        text = Path(_torch_folder(), "version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    matches = (re.search(rf"^{kit}\b.*= '([^']+)'", text, re.MULTILINE) for kit in _TOOLKITS)
    builds = [f"{kit.upper()} {m[1]}" for kit, m in zip(_TOOLKITS, matches, strict=True) if m]
    return builds[0] if builds else "CPU only"


def _torch_folder() -> str:
    """The folder of torch; empty if it is not installed."""
    spec = util.find_spec("torch")
    return next(iter(spec.submodule_search_locations or ()), "") if spec else ""


def _on_demand() -> Iterator[Check]:
    """Optional ways to observe a running job, none of them required: dynolog, torch.monitor."""
    yield _dynolog()
    folder = _torch_folder()
    if folder and Path(folder, "monitor", "__init__.py").is_file():
        found = "available; its handlers accept report.metrics() (docs: training loggers)"
        yield Check(name="torch.monitor", state="ok", found=found)
    else:
        found = "not available; distprof does not need it"
        yield Check(name="torch.monitor", state="absent", found=found)


def _dynolog() -> Check:
    """Whether dynolog's daemon listens, and whether torch programs started here register."""
    listens, registers = _dynolog_listens(), bool(os.environ.get("KINETO_USE_DAEMON"))
    state: Literal["ok", "absent"] = "ok" if listens and registers else "absent"
    found = {
        (True, True): "listens; dyno gputrace traces torch programs started from here",
        (True, False): "listens, but KINETO_USE_DAEMON is not set",
        (False, True): "KINETO_USE_DAEMON is set, but no daemon listens",
        (False, False): "not running; distprof attach does not need it",
    }[listens, registers]
    fix = {
        (True, False): "set KINETO_USE_DAEMON=1 before the training starts",
        (False, True): "start dynolog --enable_ipc_monitor, or unset the variable",
    }.get((listens, registers), "")
    return Check(name="dynolog", state=state, found=found + _kineto_config(), fix=fix)


def _dynolog_listens() -> bool:
    """Whether dynolog's socket exists, as a file or as an abstract name (Linux shows @ for NUL)."""
    folder = os.environ.get("KINETO_IPC_SOCKET_DIR")
    if folder:
        return Path(folder, "dynolog").is_socket()
    try:
        names = _UNIX_SOCKETS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(name.endswith((" @dynolog@", " @dynolog")) for name in names)


def _kineto_config() -> str:
    """A note on Kineto's configuration file, which applies to all traces; empty without one."""
    named = os.environ.get("KINETO_CONFIG")
    file = Path(named) if named else _KINETO_CONFIG
    if file.is_file():
        return f"; Kineto reads {file}"
    return f"; KINETO_CONFIG names {file}, which does not exist" if named else ""


def _extras() -> Iterator[Check]:
    for extra, module in _EXTRAS.items():
        if _is_there(module):
            yield Check(name=f"extra {extra}", state="ok", found=f"{module} is installed")
        else:
            fix = f"pip install 'distprof[{extra}]'"
            yield Check(name=f"extra {extra}", state="absent", found=f"no module {module}", fix=fix)


def _is_there(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _plugins() -> Iterator[Check]:
    for group in ("distprof.commands", "distprof.reporters", "distprof.rules"):
        for point in metadata.entry_points(group=group):
            try:
                point.load()
            except Exception as error:  # a plug-in may raise anything
                found = f"cannot be loaded: {type(error).__name__}: {error}"
                fix = "update or uninstall its package"
                yield Check(name=f"plug-in {point.name}", state="problem", found=found, fix=fix)
            else:
                yield Check(
                    name=f"plug-in {point.name}", state="ok", found=f"{group} from {point.value}"
                )


def _cache() -> Iterator[Check]:
    from distprof.artefacts.cache_place import cache_root, shared_url

    yield cache_check(Path(cache_root("", None)))
    if url := shared_url("", None):
        yield Check(name="shared cache", state="ok", found=f"{url}, checked when a trace is read")


def cache_check(root: Path) -> Check:
    """Whether the cache can be written, how large it is and how much space is free."""
    name = "cache"
    existing = next((p for p in (root, *root.parents) if p.exists()), Path("/"))
    if not os.access(existing, os.W_OK):
        fix = "set DISTPROF_CACHE_DIR to a folder you can write, or use --cache-dir"
        return Check(name=name, state="problem", found=f"{root} cannot be written", fix=fix)
    free = shutil.disk_usage(existing).free
    found = f"{root}, holds {format_bytes(_size_of(root))}, {format_bytes(free)} free"
    if free < _FEW_FREE_BYTES:
        return Check(
            name=name, state="problem", found=found, fix=f"delete {root}; distprof recreates it"
        )
    return Check(name=name, state="ok", found=found)


def _device() -> Iterator[Check]:
    """NVML through its Python binding. Analysis needs no GPU, so a missing one is no problem."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        found = "no module pynvml; only telemetry needs it"
        yield Check(name="nvml", state="absent", found=found, fix="pip install 'distprof[run]'")
        return
    try:
        pynvml.nvmlInit()
    except Exception as error:  # the binding raises its own types, or OSError from the loader
        reason = str(error) or type(error).__name__
        yield Check(name="nvml", state="absent", found=f"{reason}; only telemetry needs it")
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        names = [
            _text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
            for i in range(count)
        ]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        yield Check(
            name="nvml",
            state="ok",
            found=f"driver {driver}, {count} GPUs: {', '.join(dict.fromkeys(names))}",
        )
    finally:
        pynvml.nvmlShutdown()


def _machine() -> Iterator[Check]:
    yield Check(name="cores", state="ok", found=str(available_processors()))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Check(name="memory", state="ok", found=format_bytes(memory))


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _size_of(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _line(check: Check) -> str:
    import sys

    mark = {"ok": "ok     ", "absent": "absent ", "problem": "PROBLEM"}[check.state]
    if has_color(sys.stdout):
        mark = click.style(
            mark, fg={"ok": "green", "absent": "yellow", "problem": "red"}[check.state]
        )
    line = f"{mark}  {check.name:<18}  {plain(check.found)}\n"
    return line + (f"{'':<29}{plain(check.fix)}\n" if check.fix else "")
