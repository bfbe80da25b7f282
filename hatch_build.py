"""Compile ``distprof._kernel`` while distprof is built, where that can be done.

A wheel gets the extension if a C++ compiler and Python's headers are there, and is plain Python
otherwise; the build says which. An editable installation gets it next to the sources. Run as a
program, this file compiles it there too::

    python hatch_build.py

``DISTPROF_KERNEL=off`` builds without it; with ``required`` a build that cannot compile it fails.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCE = "native/module.cpp"
HEADERS = ("native/chunk.hpp", "native/replay.hpp", "native/search.hpp")
EXTENSION = "distprof/_kernel.abi3.so"
OLDEST = "cp311"
"""The first CPython whose stable ABI has what the extension uses."""

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off")
SAME_BYTES_EVERYWHERE = ("-g0", "-Wl,--build-id=none", "-Wl,--strip-all")


class CannotCompileError(Exception):
    """Why there is no extension."""


def compile_extension(target: Path, *flags: str) -> None:
    """Compile the extension.

    Args:
        target: The file to make, whole or not at all.
        flags: More arguments for the compiler.

    Raises:
        CannotCompileError: If this Python or machine cannot, or the compiler fails.
    """
    command = [*_compiler(), *FLAGS, *SAME_BYTES_EVERYWHERE, *flags, f"-I{_headers()}"]
    made = target.with_name(f".{target.name}.{os.getpid()}")
    # relative names: where the source lies must not be told in the file
    command += [SOURCE, "-o", str(made)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompileError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CannotCompileError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    made.chmod(0o755)
    made.replace(target)


def _compiler() -> list[str]:
    if sys.platform != "linux" or platform.python_implementation() != "CPython":
        raise CannotCompileError("it is for CPython on Linux")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotCompileError("a free-threaded Python has no stable ABI")
    chosen = os.environ.get("CXX", "").split()
    found = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    if not chosen and not found:
        raise CannotCompileError("there is no C++ compiler")
    return chosen or found[:1]


def _headers() -> str:
    place = sysconfig.get_path("include")
    if not Path(place, "Python.h").is_file():
        raise CannotCompileError("Python's headers are not installed (python3-dev)")
    return place


def _wanted() -> str:
    return os.environ.get("DISTPROF_KERNEL", "").strip().lower()


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook for wheels."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is made, and put the extension into it."""
        if _wanted() == "off":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="distprof-build-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)  # also after a failure
        is_editable = version == "editable"
        target = ROOT / EXTENSION if is_editable else self._folder / Path(EXTENSION).name
        try:
            compile_extension(target)
        except CannotCompileError as error:
            if _wanted() == "required":
                raise
            self.app.display_warning(
                f"distprof is installed without its compiled kernel, because {error}. "
                "It works the same, and reads traces at half the speed."
            )
            return
        if not is_editable:
            build_data["force_include"][str(target)] = EXTENSION
            build_data["pure_python"] = False
            build_data["tag"] = f"{OLDEST}-abi3-{_platform_tag()}"


def _platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    try:
        compile_extension(ROOT / EXTENSION, *sys.argv[1:])
    except CannotCompileError as error:
        sys.exit(f"not compiled: {error}")
