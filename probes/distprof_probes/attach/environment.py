"""Environment variables that ``distprof capture`` adds for the program."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from distprof_probes.options import OPTIONS_VARIABLE, RUN_DIR_VARIABLE, ProbeOptions

PACKAGES_VARIABLE = "DISTPROF_PACKAGES"

# All that the probes import in addition to torch and the standard library. The program sees nothing
# else of the environment that distprof is installed in, because it may use a different one.
_OURS = ("distprof", "distprof_probes", "msgspec", "pynvml")


def captured_environment(
    environment: Mapping[str, str], run_dir: Path, options: ProbeOptions
) -> dict[str, str]:
    """The environment with the hook added.

    ``PYTHONPATH`` starts with a folder that holds nothing but ``sitecustomize.py``. The run
    directory is absolute.
    """
    hook = Path(__file__).parent / "inject"
    before = environment.get("PYTHONPATH", "")
    return {
        **environment,
        "PYTHONPATH": f"{hook}{os.pathsep}{before}" if before else str(hook),
        RUN_DIR_VARIABLE: str(run_dir),
        OPTIONS_VARIABLE: options.to_json(),
        PACKAGES_VARIABLE: os.pathsep.join(_places()),
    }


def _places() -> list[str]:
    """The folders (or files) of distprof's own packages."""
    places = []
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations:
            places.append(str(next(iter(spec.submodule_search_locations))))
        elif spec.origin:
            places.append(spec.origin)
    return places
