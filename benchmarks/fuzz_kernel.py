"""Runs damaged chunks through the compiled kernel, built with sanitizers (address, undefined).

Two parts, each with one random seed:

- ``native/fuzz/mutate.cpp``, a program without Python, reads millions of chunks: the results must
  be consistent, and nothing outside a chunk may be touched.
- This program loads the sanitized extension and compares it with the Python decoder on fewer
  chunks: results must be identical to the byte, or declined.

Needs a compiler with its sanitizers' libraries. Run::

    nice -n 19 python benchmarks/fuzz_kernel.py --chunks 10000000 --compared 100000
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import hatch_build  # noqa: E402
from benchmarks.fuzzing.chunks import answers_of, is_declined, mutated_chunk  # noqa: E402
from distprof import kernel  # noqa: E402
from tests.ingest.kineto.test_native import SEEDS, TRACES, chunk_in  # noqa: E402

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def seeds() -> list[bytes]:
    """Chunks of hand-written and of real events."""
    return [*SEEDS, *(chunk_in(path, 8) for path in TRACES)]


def read_only(folder: Path, count: int, seed: int) -> None:
    """Read chunks in a separate program; raises if it finds an error."""
    program = folder / "mutate"
    source = "native/fuzz/mutate.cpp"
    compile_it = ["c++", "-std=c++17", *SANITIZED, source, "-o", str(program)]
    subprocess.run(compile_it, cwd=ROOT, check=True)
    files = []
    for number, chunk in enumerate(seeds()):
        files.append(folder / f"seed-{number}")
        files[-1].write_bytes(chunk)
    subprocess.run([program, str(count), str(seed), *files], check=True)


def library_of_compiler(name: str) -> str:
    """Path of one of the compiler's libraries."""
    asked = ["c++", f"-print-file-name={name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def compare(count: int, seed: int) -> None:
    """Compare with the Python decoder, in a process that loads the sanitizer first."""
    with tempfile.TemporaryDirectory() as made:
        extension = Path(made) / "_kernel.abi3.so"
        hatch_build.compile_extension(extension, *SANITIZED)
        libraries = [library_of_compiler(name) for name in ("libasan.so", "libstdc++.so")]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),  # load both before the interpreter
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        }
        again = [sys.executable, __file__, "--with", str(extension)]
        again += ["--compared", str(count), "--seed", str(seed)]
        subprocess.run(again, env=environment, check=True)


def compared_here(extension: str, count: int, seed: int) -> None:
    """Compare traces of a few chunks, most of them damaged, up to the first difference."""
    spec = importlib.util.spec_from_file_location("distprof._kernel", extension)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel._compiled = module
    known, declined = seeds(), 0
    for number in range(count):
        chance = Random(f"{seed} {number}")
        exact, device_only = chance.choice((None, None, True)), chance.random() < 0.3
        chunks = [mutated_chunk(chance.choice(known), chance)]
        declined += is_declined(chunks[0], exact=exact, device_only=device_only)
        # What it keeps from one chunk to the next must not show.
        chunks += [chance.choice(known) for _ in range(chance.choice((0, 0, 1, 2)))]
        chance.shuffle(chunks)
        ours, pythons = (
            answers_of(chunks, kernel=on, exact=exact, device_only=device_only)
            for on in (True, False)
        )
        if ours != pythons:
            how = f"exact {exact}, device only {device_only}"
            raise SystemExit(f"trace {number} of seed {seed} differs, {how}: {chunks!r}")
    print(f"{count} traces equal to Python's, {declined} with a declined chunk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--compared", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--with", dest="extension", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.extension:
        compared_here(asked.extension, asked.compared, asked.seed)
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        read_only(Path(folder), asked.chunks, asked.seed)
    compare(asked.compared, asked.seed)
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
