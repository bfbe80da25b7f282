"""Groups, axes, counts and bytes of real jobs over gloo, by what their script does."""

import pytest

import distprof
from distprof.schema import ABSENT
from distprof.terms import CollectiveKind, MatchMethod, Origin
from tests.ingest.job.recorded import job_folder

NUM_STEPS = 2
SHARD, REPLICATE, PIPELINE = "mesh_dp_shard", "mesh_dp_replicate", "mesh_pp"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Both jobs, read once."""
    folder = tmp_path_factory.mktemp("jobs")
    return {
        kind: distprof.open_run(
            job_folder(f"gloo-{kind}-4ranks", folder / kind).write(), use_cache=False
        )
        for kind in ("hsdp", "pp")
    }


def classes_of(run):
    """Classes over the whole capture, whose steps the script counts."""
    report = distprof.analyze(run, window="capture")
    return {(c.kind, c.group, c.bytes): c for c in report.collectives.classes}


def test_hybrid_sharding_is_told_exactly(runs):
    found = classes_of(runs["hsdp"])
    told = {key: (c.group_size, c.axis, c.count, c.num_matched) for key, c in found.items()}
    assert told == {
        ("all_gather", SHARD, 2176): (2, "dp_shard", 2 * 4 * NUM_STEPS, 2 * 4 * NUM_STEPS),
        ("reduce_scatter", SHARD, 2176): (2, "dp_shard", 2 * 2 * NUM_STEPS, 2 * 2 * NUM_STEPS),
        ("all_reduce", REPLICATE, 1088): (2, "dp_replicate", 2 * 2 * NUM_STEPS, 2 * 2 * NUM_STEPS),
    }


def test_bytes_sent_follow_the_volume_of_the_strategy(runs):
    """Formula sheet, volume: FSDP 3(P-1)/P · N · bytes; HSDP an all-reduce of N/g more.

    The whole capture is one window of two steps.
    """
    model = 2 * 544 * 4
    found = classes_of(runs["hsdp"])
    sent = {key[0]: c.sent_bytes_per_step for key, c in found.items()}
    assert sent == {
        "all_gather": NUM_STEPS * 2 * model / 2,
        "reduce_scatter": NUM_STEPS * model / 2,
        "all_reduce": NUM_STEPS * 2 * (model / 2) / 2,
    }


def test_a_pipeline_over_gloo_tells_messages_but_no_times(runs):
    found = classes_of(runs["pp"])
    for kind, sent in (("send", 2048 * NUM_STEPS), ("recv", 0)):
        messages = found[kind, PIPELINE, 2048]
        assert (messages.group_size, messages.axis) == (2, "pp")
        assert messages.count == messages.num_matched == 2 * 2 * NUM_STEPS
        assert messages.sent_bytes_per_step == sent
        assert messages.duration_ns_median is messages.transfer_ns_median is None
        assert messages.exposed_ns_per_step is messages.algbw_bytes_per_s is None
    assert found["all_reduce", REPLICATE, 1024].count == 2 * 4 * NUM_STEPS
    assert found["all_reduce", REPLICATE, 64].count == 2 * 4 * NUM_STEPS


def test_that_messages_name_no_group_is_said_alike_on_all_ranks(runs):
    said = {rank.quality.notes[0] for rank in runs["pp"]}
    assert said == {
        "Sends and receives do not name a process group: distprof assumes mesh_pp, "
        "along which ranks exchange messages."
    }


def test_peers_of_messages_are_global_ranks(runs):
    for rank in runs["pp"]:
        table = rank.collectives
        message = ~table["is_timed"]
        assert message.sum() == 2 * NUM_STEPS
        assert set(table["peer"][message].tolist()) == {(rank.rank + 2) % 4}
        assert (table["start_ns"][message] == table["end_ns"][message]).all()


def test_being_blocked_in_a_message_is_exposed_but_takes_no_part_in_overlap(runs):
    report = distprof.analyze(runs["pp"], window="capture")
    assert report.waterfall.all.exposed_p2p_wait_ns > 0
    assert {axis.axis for axis in report.overlap.axes} == {"dp_replicate"}
    for told, split in zip(report.overlap.ranks, report.breakdown.ranks, strict=True):
        waiting = next(w for w in report.waterfall.ranks if w.rank == told.rank)
        assert split.exposed_comm_ns == told.exposed_comm_ns + waiting.exposed_p2p_wait_ns
    total = report.waterfall.all
    parts = [name for name in total.__struct_fields__ if name not in ("rank", "span_ns")]
    assert sum(getattr(total, name) for name in parts) == total.span_ns


@pytest.mark.parametrize("kind", ["hsdp", "pp"])
def test_every_collective_is_joined_by_group_and_number(runs, kind):
    run = runs[kind]
    assert run.matches.matched_ratio == 1.0
    messages = run.matches.kind == CollectiveKind.SEND
    assert (run.matches.method[~messages] == MatchMethod.SEQUENCE).all()
    assert run.clock.num_violations == 0
    for rank in run:
        table = rank.collectives
        collective = table["is_timed"]
        assert (table["seq"][collective] != ABSENT).all()
        assert (table["group_origin"][collective] == Origin.MEASURED).all()
        assert (table["enqueue_ns"] <= table["start_ns"]).all()


def test_without_the_recorder_groups_are_unknown_and_said_to_be(tmp_path):
    folder = job_folder("gloo-hsdp-4ranks", tmp_path / "run", flight=False)
    run = distprof.open_run(folder.write(), use_cache=False)
    for rank in run:
        assert set(rank.collectives["group_origin"].tolist()) == {Origin.ABSENT}
    assert any("process group" in note for note in run.ranks[0].quality.notes)


def test_tables_are_cached_with_what_the_recorder_told(tmp_path):
    folder = job_folder("gloo-hsdp-4ranks", tmp_path / "run", flight=False)
    path = folder.write()
    before = distprof.open_run(path)
    job_folder("gloo-hsdp-4ranks", tmp_path / "run").write()
    after = distprof.open_run(path)
    assert (before.ranks[0].collectives["seq"] == ABSENT).all()
    assert (after.ranks[0].collectives["seq"] != ABSENT).all()
