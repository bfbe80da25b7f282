"""Simulated jobs written as Kineto files and opened: what is read is what was simulated."""

import numpy as np
import pytest

from distprof.ingest.open import open_run
from distprof.ingest.rank import IngestOptions
from distprof.terms import CollectiveKind
from tests.ingest.instances import members_of, true_instances
from tests.simulator import Collective, Compute, Exchange, SimulatedJob

MS = 1_000_000
JOBS = {
    "data parallel": SimulatedJob(clock_offset_ns=(0, 8 * MS), capture_skip={2: 4}),
    "hybrid": SimulatedJob(
        axes={"pp": ((0, 2), (1, 3)), "tp": ((0, 1), (2, 3))},
        program=(
            Compute(ns=MS),
            Exchange(axis="pp", src=0, dst=1),
            Collective(axis="tp", kind=CollectiveKind.ALL_GATHER, bytes=1 << 20),
            Collective(axis="tp", kind=CollectiveKind.REDUCE_SCATTER, bytes=1 << 20),
            Compute(ns=MS),
            Collective(),
        ),
        clock_offset_ns=(0, -3 * MS),
    ),
}


@pytest.mark.parametrize("with_seq", [True, False])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_files_of_a_job_are_read_and_matched_as_it_ran(job, with_seq, tmp_path):
    recording = job.run()
    recording.write_kineto(tmp_path / "traces", with_seq=with_seq)
    options = IngestOptions(use_cache=False)
    run = open_run(str(tmp_path / "traces"), options=options, executor="serial")
    for expected, read in zip(recording.to_ranks(with_seq=with_seq), run, strict=True):
        for column in ("start_ns", "end_ns", "enqueue_ns", "kind", "bytes", "seq", "peer"):
            np.testing.assert_array_equal(
                read.collectives[column], expected.collectives[column], err_msg=column
            )
    found = {frozenset(m) for m in members_of(run.matches)}
    assert found == true_instances(recording)
    assert run.matches.matched_ratio == 1.0
