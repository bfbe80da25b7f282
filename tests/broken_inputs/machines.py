"""Output of nvidia-smi topo -m that is cut, mixed or made to harm."""

from __future__ import annotations

import random

from tests.broken_inputs.intact import EITHER, REFUSED, Cases
from tests.broken_inputs.nccl_logs import log

CASES = Cases()
HEAD = b"\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
ROWS = b"GPU0\t X \tNV4\tPIX\t0-7\t0\nGPU1\tNV4\t X \tSYS\t8-15\t1\nNIC0\tPIX\tSYS\t X \n"
EVIL = b"\x1b]0;owned\x07\x1b[2J[bold]\xe2\x80\xae"
MANY = b"\t" + b"\t".join(b"GPU%d" % n for n in range(3_000)) + b"\tCPU Affinity\n"


def random_matrix(seed: int) -> bytes:
    """Pieces of a matrix in any order, behind a whole one."""
    chance = random.Random(seed)
    pieces = (HEAD, b"GPU0\t", b" X \t", b"SYS\t", b"\n", b"\r", EVIL, b"NIC0: a\n", b"\xff" * 9)
    return HEAD + ROWS + b"".join(chance.choices(pieces, k=2_000))


CASES.add("matrix of GPUs without rows", REFUSED, log(HEAD, "topo.txt"))
CASES.add("matrix of GPUs cut in its rows", EITHER, log(HEAD + ROWS[:30], "topo.txt"))
CASES.add("matrix of three thousand GPUs", REFUSED, log(MANY + ROWS, "topo.txt"))
CASES.add("matrix of GPUs named twice", REFUSED, log(HEAD.replace(b"GPU1", b"GPU0") + ROWS))
CASES.add("host of a matrix with control characters", EITHER, log(EVIL + b"n1\n" + HEAD + ROWS))
CASES.add(
    "network card with control characters",
    EITHER,
    log(HEAD + ROWS + b"\nNIC Legend:\n  NIC0: " + EVIL + b"x\n"),
)
CASES.add("matrix of GPUs on an endless line", EITHER, log(HEAD + ROWS + b"GPU0 " * 200_000))
for seed in range(5):
    CASES.add(f"pieces of a matrix of GPUs {seed}", EITHER, log(random_matrix(seed)))
