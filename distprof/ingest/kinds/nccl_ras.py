"""Output of ``ncclras``: what NCCL knows about the communicators and ranks of a running job."""

from __future__ import annotations

import msgspec

from distprof.bounds import Bound, within
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, beginning, opened
from distprof.ingest.nccl.ras import is_ras, parse_ras
from distprof.ingest.source import Source
from distprof.run.evidence import RasStatus

BOUND = Bound(
    reads="output of ncclras", num_bytes=1 << 26, rows=5_000_000, depth=1_000, beyond="refused"
)
_SNIFFED_BYTES = 1 << 16
_ENDINGS = (".txt", ".json", ".log", ".out", ".txt.gz", ".json.gz", ".log.gz")


def fits_nccl_ras(source: str) -> bool:
    """Whether a source begins like such output; never raises for other files."""
    start = beginning(source, _SNIFFED_BYTES, endings=_ENDINGS)
    return is_ras(start.decode("utf-8", "replace"))


def read_nccl_ras(source: str) -> RasStatus:
    """Read the last snapshot of a file."""
    try:
        with opened(source) as stream:
            data = within(stream.read(BOUND.num_bytes + 1), BOUND.num_bytes, source)
        status = parse_ras(data.decode("utf-8", "replace"))
    except (*DAMAGE, msgspec.DecodeError, RecursionError) as error:
        raise _refused(source, " ".join(f"{error}".split())[:200]) from error
    if status is None:
        raise _refused(source, "no snapshot")
    return status


def _refused(source: str, found: str) -> InputError:
    return InputError(
        source,
        expected="output of ncclras -v, or of ncclras -f json",
        found=found,
        fix="save the whole output of ncclras",
    )


SOURCE = Source(
    bound=BOUND,
    place=48,
    origin="output of ncclras",
    name="output of ncclras",
    fits=fits_nccl_ras,
    read=read_nccl_ras,
    notes="damaged",
)
