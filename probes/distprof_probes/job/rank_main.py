"""Runs a rank's Python program so that it can write its stacks on demand.

``python -m distprof_probes.job.rank_main MODULE`` runs the module as the main program.

On SIGUSR1, the stacks of all threads are appended to ``stacks.txt`` in the rank's directory. The C
code of :mod:`faulthandler` writes them, so this works while the main thread waits in a library.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import sys
from pathlib import Path

from distprof.artefacts import STACKS_FILE
from distprof_probes.job.directory import rank_directory
from distprof_probes.job.supervise import STACKS_SIGNAL


def write_stacks_on_signal(run_dir: Path, rank: int) -> None:
    """Let this process append its Python stacks to stacks.txt on SIGUSR1."""
    folder = rank_directory(run_dir, rank)
    folder.mkdir(parents=True, exist_ok=True)
    stream = (folder / STACKS_FILE).open("a")  # stays open as long as the process lives
    faulthandler.register(STACKS_SIGNAL, file=stream, all_threads=True, chain=False)


def main() -> None:
    """Register the signal, then run the module as the main program."""
    try:
        write_stacks_on_signal(Path(os.environ["DISTPROF_RUN_DIR"]), int(os.environ["RANK"]))
    except OSError:  # a full disk costs the stacks, not the job
        sys.stderr.write("stacks cannot be written\n")
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
