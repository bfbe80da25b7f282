"""Start-up: commands and small traces, compared with their imports, and with another version.

Limits, in CPU time on a quiet core: ``distprof --help`` 100 ms, a first ``distprof analyze`` of a
small trace 500 ms. On a busy machine, compare with ``import numpy, msgspec``, measured alternately.
``--against`` takes a checkout of another version: each command is then measured in both,
alternately.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import Cost, compile_as_installed, machine, measure, medians, print_table, rounds
from measuring import versions as versions_of

HERE = Path(__file__).resolve().parents[1]
GOLDEN = "tests/golden/kineto"
IMPORTS = {
    "python -c pass": "pass",
    "import numpy, msgspec": "import numpy, msgspec",
    "import pandas": "import pandas",
}
COMMANDS = ("--help", "analyze --help", "plan --help", "rule COM101", "doctor")
SMALL = ("gloo-ddp-2ranks", "dlrm-v100-8gpu")
FIRST, AGAIN = "first", "again"


def environment(root: Path, cache: Path) -> dict[str, str]:
    """Environment of a process that runs the checkout ``root``."""
    places = (root, root / "probes", root / "reference_runs")
    return {"PYTHONPATH": os.pathsep.join(map(str, places)), "XDG_CACHE_HOME": str(cache)}


def analysed(command: list[str], root: Path, cache: Path, when: str) -> Cost:
    """One analysis, with or without a cache of an earlier one."""
    if when == FIRST:
        shutil.rmtree(cache, ignore_errors=True)
    return measure(command, env=environment(root, cache))


def of_checkout(root: Path, scratch: Path, title: str) -> dict[str, Callable[[], Cost]]:
    """The commands of a checkout, and first and second analyses of small traces."""
    program = [sys.executable, "-P", "-m", "distprof"]  # not the current folder's
    found: dict[str, Callable[[], Cost]] = {}
    cache = scratch / f"cache-{title.strip()}"
    for command in COMMANDS:
        line = [*program, *command.split()]
        found[f"distprof {command}{title}"] = partial(measure, line, env=environment(root, cache))
    for name in SMALL:
        for form in ("text", "json"):
            for when in (FIRST, AGAIN):
                line = [*program, "analyze", str(HERE / GOLDEN / name), "--format", form]
                run = partial(analysed, line, root, cache, when)
                found[f"analyze {name}, {form}, {when}{title}"] = run
    return found


def contestants(
    hta_python: str, against: Path | None, scratch: Path
) -> dict[str, Callable[[], Cost]]:
    found: dict[str, Callable[[], Cost]] = {
        name: partial(measure, [sys.executable, "-c", code]) for name, code in IMPORTS.items()
    }
    found["import hta"] = partial(measure, [hta_python, "-c", "import hta.trace_analysis"])
    here, there = of_checkout(HERE, scratch, ""), {}
    if against is not None:
        there = of_checkout(against, scratch, " (other)")
    for ours, other in zip(here.items(), there.items() or [None] * len(here), strict=True):
        found |= dict([ours] if other is None else [other, ours])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how often each is measured")
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--hta-python", default=sys.executable, help="a Python that has HTA")
    options = parser.parse_args()

    os.environ.pop("DISTPROF_CACHE_DIR", None)  # as for a user who sets no cache
    compile_as_installed()
    with tempfile.TemporaryDirectory() as folder:
        measured = contestants(options.hta_python, options.against, Path(folder))
        for run in measured.values():
            run()  # a first run, for the disk cache and the compiled files
        costs = {name: medians(each) for name, each in rounds(measured, options.rounds).items()}
    print(machine())
    print(versions_of("distprof", "click", "numpy", "pandas"))
    reference = costs["import numpy, msgspec"].cpu_s
    rows = [
        (
            name,
            f"{cost.cpu_s * 1e3:.0f}",
            f"{cost.cpu_s / reference:.2f}",
            f"{cost.wall_s * 1e3:.0f}",
            f"{cost.peak_bytes / 1e6:.0f}",
        )
        for name, cost in costs.items()
    ]
    print_table(("command", "CPU ms", "× numpy, msgspec", "wall ms", "peak MB"), rows)


if __name__ == "__main__":
    main()
