"""A run handed to Holistic Trace Analysis gives what HTA gives on the files themselves."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import distprof
from distprof.errors import InputError, MissingExtraError, UsageError
from distprof.run.run import Device, Run
from tests.builders import RankBuilder, make_run

KINETO = Path(__file__).parents[1] / "golden" / "kineto"
US = 1000


def test_without_hta_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta.common.trace", None)
    with pytest.raises(MissingExtraError, match=r"run\.to_hta\(\).*distprof\[hta\]"):
        make_run([RankBuilder().rank()]).to_hta()


hta_test = pytest.mark.hta


@pytest.fixture
def hta() -> Iterator[Any]:
    """HTA's module, its chatter off; its own code warns under pandas 3."""
    module = pytest.importorskip("hta.trace_analysis", reason="the extra hta is not installed")
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield module
    logging.disable(logging.NOTSET)


def two_steps() -> RankBuilder:
    """Step 1: gemm 10-30 us, all-reduce 25-40; step 2: gemm 110-150. Whole microseconds."""
    rank = RankBuilder(0)
    rank.annotation("ProfilerStep#1", 0 * US, 60 * US)
    rank.kernel("gemm", 10 * US, 30 * US, launched=(2 * US, 4 * US))
    rank.comm("ncclKernel_AllReduce", 25 * US, 40 * US, launched=(5 * US, 8 * US))
    rank.annotation("ProfilerStep#2", 100 * US, 160 * US)
    rank.kernel("gemm", 110 * US, 150 * US, launched=(102 * US, 104 * US))
    return rank


@hta_test
def test_last_step_is_dropped_as_hta_does_and_times_add_up(hta: Any) -> None:
    analysis = make_run([two_steps().rank()]).to_hta()
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert row["kernel_time(us)"] == 30  # 10 to 40
    assert row["compute_time(us)"] == 20
    assert row["non_compute_time(us)"] == 10
    assert row["idle_time(us)"] == 0
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    assert overlap["comp_comm_overlap_pctg"].tolist() == [33.33]  # 5 of 15


@hta_test
def test_last_step_can_be_kept(hta: Any) -> None:
    analysis = make_run([two_steps().rank()]).to_hta(include_last_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert row["kernel_time(us)"] == 140  # 10 to 150
    assert row["compute_time(us)"] == 60
    assert row["idle_time(us)"] == 70  # 40 to 110
    assert analysis.t.get_iterations() == [1, 2]


@hta_test
def test_launch_delay_runs_from_the_end_of_the_call_to_the_start_of_the_kernel(hta: Any) -> None:
    analysis = make_run([two_steps().rank()]).to_hta()
    stats = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert stats["launch_delay"].tolist() == [6, 17]
    assert stats["cpu_duration"].tolist() == [2, 3]


@hta_test
def test_fractions_round_as_in_hta_unless_exact(hta: Any) -> None:
    """A kernel within one microsecond lasts -1 us after HTA's rounding, and 0.3 us in truth."""
    epoch = 1_700_000_000_000_000_000
    rank = RankBuilder(0).kernel("k", epoch + 100, epoch + 400, launched=(epoch, epoch + 50))
    run = make_run([rank.rank()])

    rounded, exact = run.to_hta().t.get_trace(0), run.to_hta(exact=True).t.get_trace(0)

    assert rounded.loc[rounded["stream"] >= 0, "dur"].tolist() == [-1]
    assert exact.loc[exact["stream"] >= 0, "dur"].tolist() == [0.3]
    assert exact.loc[exact["stream"] >= 0, "ts"].tolist() == [0.1]


@hta_test
@pytest.mark.parametrize("exact", [False, True])
def test_start_of_the_trace_is_given_since_the_epoch(hta: Any, exact: bool) -> None:
    epoch = 1_700_000_000_000_000_000
    run = make_run([RankBuilder(0).kernel("k", epoch, epoch + US, launched=(epoch, epoch)).rank()])
    assert run.to_hta(exact=exact).t.get_trace_start_unixtime_ns(0) == epoch


@hta_test
def test_bandwidth_of_a_copy_is_its_bytes_over_its_duration(hta: Any) -> None:
    rank = RankBuilder(0).copy("Memcpy HtoD", 0, 10 * US, size=120_000, launched=(0, US))
    summary = make_run([rank.rank()]).to_hta().get_memory_bw_summary()
    assert summary["memory_bw_gbps"]["max"].tolist() == [12.0]


@hta_test
def test_only_the_named_ranks_are_handed_over(hta: Any) -> None:
    run = make_run([two_steps().rank(), RankBuilder(3).annotation("a", 0, US).rank()])
    assert run.to_hta(ranks=[0]).t.get_ranks() == [0]
    with pytest.raises(ValueError, match="rank 7"):
        run.to_hta(ranks=[7])


@hta_test
def test_what_reads_the_original_file_is_refused_with_the_way_out(hta: Any) -> None:
    analysis = make_run([two_steps().rank()]).to_hta()
    with pytest.raises(UsageError, match=r"original file.*hta\.trace_analysis\.TraceAnalysis"):
        analysis.generate_trace_with_counters()
    with pytest.raises(UsageError, match="original file"):
        analysis.t.get_raw_trace_for_one_rank(rank=0)


@hta_test
def test_critical_path_is_refused_where_synchronisation_events_lack_their_arguments(
    hta: Any,
) -> None:
    rank = two_steps().call("Stream Wait Event", 0, US, category="sync")
    with pytest.raises(UsageError, match="synchronisation events"):
        make_run([rank.rank()]).to_hta().critical_path_analysis(0, "ProfilerStep", 0)


@hta_test
def test_a_recording_without_device_work_is_refused_by_name_instead_of_an_index_error(
    hta: Any,
) -> None:
    rank = RankBuilder(0).operator("aten::mm", 0, 10).kernel("aten::mm", 0, 10)
    run = make_run([rank.rank(device=Device(name="cpu"))])
    with pytest.raises(UsageError, match="no device activity"):
        run.to_hta().get_temporal_breakdown()


@hta_test
def test_a_run_without_host_rows_is_refused(hta: Any) -> None:
    run = make_run([RankBuilder(0).kernel("k", 0, 10).rank()])
    with pytest.raises(InputError, match="device rows only"):
        run.to_hta()


# Against HTA's own reading of the same files ----------------------------------------------------


def golden(name: str) -> Path:
    return KINETO / name


def corpus(name: str) -> Path:
    folder = os.environ.get("DISTPROF_CORPUS")
    if not folder:
        pytest.skip("DISTPROF_CORPUS does not name a folder of traces")
    return Path(folder) / "kineto" / name


def both(hta: Any, folder: Path, tmp_path: Path) -> tuple[Run, Any, Any]:
    run = distprof.open_run(folder, executor="serial", cache_dir=tmp_path / "cache")
    own = hta.TraceAnalysis(trace_files={rank.rank: rank.path for rank in run})
    return run, run.to_hta(), own


def results(analysis: Any, ranks: list[int]) -> dict[str, Callable[[], Any]]:
    """HTA's analyses as frames, by name."""

    def critical_path() -> pd.DataFrame:
        graph, complete = analysis.critical_path_analysis(
            rank=ranks[0], annotation="ProfilerStep", instance_id=0
        )
        assert complete
        return pd.DataFrame(graph.summary())

    return {
        "temporal": lambda: analysis.get_temporal_breakdown(visualize=False),
        "overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
        "idle": lambda: analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)[0],
        "kernel types": lambda: analysis.get_gpu_kernel_breakdown(visualize=False)[0],
        "kernels": lambda: analysis.get_gpu_kernel_breakdown(visualize=False)[1],
        "launches": lambda: pd.concat(
            analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False).values()
        ),
        "queue": lambda: analysis.get_queue_length_summary(ranks=ranks),
        "bandwidth": lambda: analysis.get_memory_bw_summary(ranks=ranks),
        "annotations": lambda: analysis.get_gpu_user_annotation_breakdown(
            visualize=False, use_gpu_annotation=False
        ),
        "steps": lambda: pd.DataFrame(analysis.get_profiler_steps()),
        "critical path": critical_path,
        "stragglers": lambda: pd.DataFrame(analysis.get_potential_stragglers()),
    }


def assert_equal(bridged: Any, own: Any, names: set[str], ranks: list[int]) -> None:
    left, right = results(bridged, ranks), results(own, ranks)
    for name in sorted(names):
        pd.testing.assert_frame_equal(
            left[name]().reset_index(),
            right[name]().reset_index(),
            check_dtype=False,  # HTA has whole microseconds as floats
            rtol=1e-6,
            obj=name,
        )


ONE_RANK = {"temporal", "overlap", "idle", "kernel types", "kernels", "launches", "queue"} | {
    "bandwidth",
    "annotations",
    "steps",
    "critical path",
}
WHOLE_MICROSECONDS = {"bandwidth"}  # Kineto divided by the duration before it was rounded


@hta_test
def test_one_rank_with_nanoseconds_equals_hta(hta: Any, tmp_path: Path) -> None:
    _, bridged, own = both(hta, golden("ddp-a100-2gpu-rank0"), tmp_path)
    assert_equal(bridged, own, ONE_RANK, [0])
    row = bridged.get_temporal_breakdown(visualize=False).iloc[0]
    assert row["kernel_time(us)"] == 435586
    assert row["idle_time(us)"] == 338781


@hta_test
def test_without_rounding_and_with_the_last_step_hta_agrees_with_distprof(
    hta: Any, tmp_path: Path
) -> None:
    """Both make HTA's numbers differ from the published ones; here they come out in full."""
    run = distprof.open_run(
        golden("ddp-a100-2gpu-rank0"), executor="serial", cache_dir=tmp_path / "cache"
    )
    analysis = run.to_hta(exact=True, include_last_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert row["kernel_time(us)"] == pytest.approx(660_551.005)
    assert row["compute_time(us)"] == pytest.approx(115_655.847)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    assert overlap["comp_comm_overlap_pctg"].tolist() == [15.61]


@hta_test
def test_four_ranks_equal_hta_down_to_the_stragglers(hta: Any, tmp_path: Path) -> None:
    run, bridged, own = both(hta, golden("dlrm-v100-8gpu"), tmp_path)
    ranks = [rank.rank for rank in run]
    assert_equal(bridged, own, (ONE_RANK | {"stragglers"}) - WHOLE_MICROSECONDS - {"idle"}, ranks)


@hta_test
def test_idle_differs_from_hta_only_where_a_kernel_has_no_launch(hta: Any, tmp_path: Path) -> None:
    """HTA takes the file's first event for the launch of a kernel without launch record."""
    run, bridged, own = both(hta, golden("dlrm-v100-8gpu"), tmp_path)
    ranks = [rank.rank for rank in run]
    left = results(bridged, ranks)["idle"]().set_index(["rank", "stream", "idle_category"])
    right = results(own, ranks)["idle"]().set_index(["rank", "stream", "idle_category"])
    differing = left.index[(left["idle_time"] != right["idle_time"]).to_numpy()]
    for rank, stream, _ in differing:
        frame = bridged.t.get_trace(rank)
        on_stream = frame[frame["stream"] == stream]
        assert (on_stream["index_correlation"] <= 0).any()
    total = ["rank", "stream"]
    assert np.array_equal(
        left.groupby(total)["idle_time"].sum(), right.groupby(total)["idle_time"].sum()
    )


@hta_test
def test_amd_trace_equals_hta(hta: Any, tmp_path: Path) -> None:
    _, bridged, own = both(hta, golden("mi250-1gpu"), tmp_path)
    assert_equal(bridged, own, ONE_RANK, [0])


@hta_test
@pytest.mark.corpus
@pytest.mark.parametrize("name", ["torchrec-a100-16gpu-rank0", "dlrm-a100-8gpu-rank3"])
def test_larger_real_traces_equal_hta(hta: Any, tmp_path: Path, name: str) -> None:
    run, bridged, own = both(hta, corpus(name), tmp_path)
    assert_equal(bridged, own, ONE_RANK - WHOLE_MICROSECONDS, [run.ranks[0].rank])
