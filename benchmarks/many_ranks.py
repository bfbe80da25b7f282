"""One job of 1, 8 and 64 ranks of 10 MB each: CPU, wall time and memory as ranks grow.

Each rank is the same real trace (two A100, three steps) under another rank number.
``distprof analyze`` analyses all of them with nothing cached, and HTA loads them if it is
installed. Expected: CPU grows in proportion to ranks, and memory of the process tree does not grow.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from measuring import Cost, cpu_ratio, machine, measure, medians, print_table, rounds, versions

HERE = Path(__file__).resolve().parent
TRACE = HERE.parent / "tests/golden/kineto/ddp-a100-2gpu-rank0/nccl_data.json.gz"


def make_job(folder: Path, num_ranks: int) -> int:
    """Write ``num_ranks`` traces into ``folder``; returns the bytes of JSON."""
    text = gzip.decompress(TRACE.read_bytes()).decode()
    members = ", ".join(map(str, range(num_ranks)))
    text = text.replace('"world_size": 2', f'"world_size": {num_ranks}')
    text = text.replace('"ranks": [0, 1]', f'"ranks": [{members}]')
    text = text.replace('"Process Group Ranks": "[0, 1]"', f'"Process Group Ranks": "[{members}]"')
    text = text.replace('"Group size": 2', f'"Group size": {num_ranks}')
    num_bytes = 0
    for rank in range(num_ranks):
        data = re.sub(r'"rank": 0\b', f'"rank": {rank}', text, count=1).encode()
        num_bytes += len(data)
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(data, 6, mtime=0))
    return num_bytes


def distprof(folder: Path, *more: str) -> Cost:
    with tempfile.TemporaryDirectory() as cache:
        arguments = ["analyze", str(folder), "--cache-dir", cache, "--format", "json", *more]
        return measure([sys.executable, "-m", "distprof", *arguments], tree=True)


def hta(python: str, folder: Path) -> Cost:
    return measure([python, str(HERE / "contestant.py"), "hta-overlap", str(folder)], tree=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="1, 8 and 64 ranks, three rounds")
    parser.add_argument("--hta-python", default="", help="a Python that has HTA; without, no HTA")
    options = parser.parse_args()
    counts = [1, 8, 64] if options.full else options.ranks
    num_rounds = 3 if options.full else options.rounds

    print(machine())
    print(versions("distprof", "numpy", "pandas", "pyarrow", "msgspec", "isal"))
    rows = []
    for num_ranks in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            num_bytes = make_job(folder, num_ranks)
            contestants = {
                "distprof": partial(distprof, folder),
                "distprof --device-only": partial(distprof, folder, "--device-only"),
            }
            if options.hta_python:
                contestants["HTA"] = partial(hta, options.hta_python, folder)
            costs = rounds(contestants, num_rounds)
        for tool, measured in costs.items():
            cost = medians(measured)
            ratio = cpu_ratio(costs["HTA"], measured) if "HTA" in costs else 1.0
            rows.append(
                (
                    str(num_ranks),
                    f"{num_bytes / 1e6:.0f}",
                    tool,
                    f"{cost.cpu_s:.2f}",
                    f"{cost.wall_s:.2f}",
                    f"{cost.tree_bytes / 1e6:.0f}",
                    f"{ratio:.1f}",
                )
            )
    print_table(
        ("ranks", "MB JSON", "tool", "CPU s", "wall s", "tree MB", "x less CPU than HTA"), rows
    )


if __name__ == "__main__":
    main()
