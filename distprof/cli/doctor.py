"""``distprof doctor``: checks the installation, and what distprof can use on this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import click

from distprof.cli.app import ExitCode
from distprof.cli.options import debug_option, format_option
from distprof.cli.output import has_color, terminal_width, to_stdout
from distprof.escape import plain, wrapped
from distprof.kernel import available_processors, explain
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
_TOOLKITS = ("cuda", "rocm", "hip", "xpu")
"""Toolkits that torch may be built for, as named in its ``version.py``."""
_FEW_FREE_BYTES = 2 * 10**9
_INDENT = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str  # What was checked.
    # ``ok``, ``absent`` (something optional is not installed) or ``problem``.
    state: Literal["ok", "absent", "problem"]
    found: str  # What was found.
    fix: str = ""  # How to fix a problem, or the command that installs the absent package.


@click.command()
@format_option("text", "json")
@debug_option
def doctor(format_name: str) -> int:
    """Check this installation: versions, extras, cache, GPU. Exit code 1 if there are problems."""
    checks = list(all_checks())
    problems = sum(check.state == "problem" for check in checks)
    if format_name == "json":
        content = {"problems": problems, "checks": [asdict(check) for check in checks]}
        to_stdout(json.dumps(content, indent=2) + "\n", "json")
    else:
        summary = f"{problems or 'no'} problem{'s' if problems != 1 else ''}"
        to_stdout(f"{''.join(map(_line, checks))}\n{summary}\n")
    return ExitCode.FINDINGS if problems else ExitCode.FINE


def all_checks() -> Iterator[Check]:
    """Every check, in the order shown."""
    yield Check(name="distprof", state="ok", found=f"{__version__}, {_machine()}")
    yield _packages()
    is_used, found = explain()
    yield Check(name="kernel", state="ok" if is_used else "absent", found=found)
    yield _torch()
    yield _extras()
    from distprof.artefacts.files import cache_root, shared_url

    yield cache_check(Path(cache_root("", None)))
    if url := shared_url("", None):
        yield Check(name="shared cache", state="ok", found=f"{url}, checked when a trace is read")
    yield _device()


def _machine() -> str:
    """For example ``Python 3.12.1 on Linux x86_64, 16 CPUs, 128 GB``."""
    facts = [
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"{available_processors()} CPUs",
    ]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts.append(format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return ", ".join(facts)


def _packages() -> Check:
    """The packages that distprof requires, with their versions."""
    versions = {name: _version_of(name) for name in _REQUIRED}
    found = [f"{name} {version}" for name, version in versions.items() if version]
    lacking = [name for name, version in versions.items() if not version]
    found += [f"no {name}: {why}" for name, why in _NOT_EVERYWHERE.items() if name in lacking]
    needed = [name for name in lacking if name not in _NOT_EVERYWHERE]
    if not needed:
        return Check(name="packages", state="ok", found=", ".join(found))
    text, fix = f"not installed: {', '.join(needed)}", f"pip install {' '.join(needed)}"
    return Check(name="packages", state="problem", found=text, fix=fix)


def _torch() -> Check:
    """The build of torch and its NCCL version, read without importing torch (takes seconds)."""
    version = _version_of("torch")
    if version is None:
        return Check(name="torch", state="absent", found="only recording needs it")
    facts = [version, _built_for()]
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.startswith(("nvidia-nccl", "rccl")):
            facts.append(f"{name} {distribution.version}")
    return Check(name="torch", state="ok", found=", ".join(filter(None, facts)))


def _built_for() -> str:
    """For example ``CUDA 13.0`` or ``CPU only``; empty if torch does not say."""
    spec = util.find_spec("torch")
    folder = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
    try:
        text = Path(folder, "version.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    matches = (re.search(rf"^{kit}\b.*= '([^']+)'", text, re.MULTILINE) for kit in _TOOLKITS)
    builds = [f"{kit.upper()} {m[1]}" for kit, m in zip(_TOOLKITS, matches, strict=True) if m]
    return builds[0] if builds else "CPU only"


def _extras() -> Check:
    """Which extras are installed; none is needed, so a missing one is no problem."""
    there = [extra for extra, module in _EXTRAS.items() if _is_there(module)]
    lacking = [extra for extra in _EXTRAS if extra not in there]
    parts = [", ".join(there) or "none"]
    if lacking:
        parts.append(f"not installed: {', '.join(lacking)} (pip install 'distprof[NAME]')")
    return Check(name="extras", state="ok", found="; ".join(parts))


def _is_there(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def cache_check(root: Path) -> Check:
    """Whether the cache can be written, how large it is and how much space is free."""
    existing = next((p for p in (root, *root.parents) if p.exists()), Path("/"))
    if not os.access(existing, os.W_OK):
        fix = "set DISTPROF_CACHE_DIR to a folder you can write, or use --cache-dir"
        return Check(name="cache", state="problem", found=f"{root} cannot be written", fix=fix)
    free = shutil.disk_usage(existing).free
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files)
    found = f"{root}, holds {format_bytes(size)}, {format_bytes(free)} free"
    if free >= _FEW_FREE_BYTES:
        return Check(name="cache", state="ok", found=found)
    fix = f"delete {root}; distprof recreates it"
    return Check(name="cache", state="problem", found=found, fix=fix)


def _device() -> Check:
    """NVML through its Python binding. Analysis needs no GPU, so a missing one is no problem."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        found = "no module pynvml; only telemetry needs it"
        return Check(name="NVML", state="absent", found=found, fix="pip install 'distprof[run]'")
    try:
        pynvml.nvmlInit()
    except Exception as error:  # the binding raises its own types, or OSError from the loader
        reason = str(error) or type(error).__name__
        return Check(name="NVML", state="absent", found=f"{reason}; only telemetry needs it")
    try:
        count = pynvml.nvmlDeviceGetCount()
        names = [
            _text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
            for i in range(count)
        ]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        listed = ", ".join(dict.fromkeys(names))
        return Check(name="NVML", state="ok", found=f"driver {driver}, {count} GPUs: {listed}")
    finally:
        pynvml.nvmlShutdown()


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_MARKS = {
    "ok": ("ok     ", "green"),
    "absent": ("absent ", "yellow"),
    "problem": ("PROBLEM", "red"),
}


def _line(check: Check) -> str:
    mark, color = _MARKS[check.state]
    if has_color(sys.stdout):
        mark = click.style(mark, fg=color)
    fix = f" ({check.fix})" if check.fix else ""
    text = wrapped(plain(check.found + fix), terminal_width() - _INDENT)
    return f"{mark}  {check.name:<12}  " + text.replace("\n", f"\n{'':{_INDENT}}") + "\n"
