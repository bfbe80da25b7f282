"""Start-up: ``distprof --help`` and ``import distprof``, compared with an empty Python and HTA.

Limits: ``distprof --help`` below 150 ms, ``import distprof`` below 250 ms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from measuring import Cost, machine, measure, medians, print_table, rounds, versions


def contestants(hta_python: str) -> dict[str, Callable[[], Cost]]:
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import distprof": [sys.executable, "-c", "import distprof"],
        "distprof --help": [sys.executable, "-m", "distprof", "--help"],
        "distprof analyze --help": [sys.executable, "-m", "distprof", "analyze", "--help"],
        "import pandas": [sys.executable, "-c", "import pandas"],
        "import hta": [hta_python, "-c", "import hta.trace_analysis"],
    }
    return {name: partial(measure, command) for name, command in commands.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument("--full", action="store_true", help="25 rounds")
    parser.add_argument("--hta-python", default=sys.executable, help="a Python that has HTA")
    options = parser.parse_args()

    for run in contestants(options.hta_python).values():
        run()  # once for the disk cache and the compiled files
    costs = rounds(contestants(options.hta_python), 25 if options.full else options.rounds)
    print(machine())
    print(versions("distprof", "click", "numpy", "pandas"))
    rows = []
    for name, measured in costs.items():
        cost = medians(measured)
        rows.append(
            (
                name,
                f"{cost.cpu_s * 1e3:.0f}",
                f"{cost.wall_s * 1e3:.0f}",
                f"{cost.peak_bytes / 1e6:.0f}",
            )
        )
    print_table(("command", "CPU ms", "wall ms", "peak MB"), rows)


if __name__ == "__main__":
    main()
