"""Run directories of recorded jobs."""

from __future__ import annotations

import gzip
from pathlib import Path

from distprof.artefacts import FLIGHT_FILE
from tests.job_folders import JobFolder

JOBS = Path(__file__).parents[2] / "golden" / "job"
MESHES = {
    "gloo-hsdp-4ranks": {"dp_replicate": 2, "dp_shard": 2},
    "gloo-pp-4ranks": {"pp": 2, "dp_replicate": 2},
}


def job_folder(name: str, path: Path, *, flight: bool = True, **fields: object) -> JobFolder:
    """The run directory of a recorded job, run.json not written yet."""
    folder = JobFolder(path, mesh=MESHES[name], **fields)
    for rank in range(folder.size):
        folder.trace(rank, JOBS / name / f"rank-{rank}.trace.json.gz")
        if flight:
            dump = gzip.decompress((JOBS / name / f"rank-{rank}.flight.json.gz").read_bytes())
            (folder.rank_dir(rank) / FLIGHT_FILE).write_bytes(dump)
    return folder
