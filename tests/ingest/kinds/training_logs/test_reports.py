"""Each wording of the table on its example, and programs that no table lists."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import re

import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.ingest.output.expressions import SHORTEST_SIGN
from distprof.ingest.training_logs.grammar import Row
from distprof.ingest.training_logs.read import read_training_log
from distprof.ingest.training_logs.reports import Reports, wordings
from distprof.schema import ABSENT
from distprof.sections.shows import judge

MS = 1_000_000


@pytest.mark.parametrize("wording", wordings(), ids=lambda one: one.program)
def test_the_example_yields_its_values_and_no_other_program_takes_it(wording):
    reports = Reports()
    values = dict(wording.values)
    if samples := values.pop("samples", None):
        reports.grammars[wording.program].facts["global_batch_size"] = 8
        values["iteration"] = samples / 8
    if wording.breaks:
        reports.grammars[wording.program]._before = (1, 1.0)
    is_of_timers = wording.phases and not wording.whole
    if is_of_timers:
        reports.grammars[wording.program].add(Row(1))
    reports.take(wording.example.strip("\n").encode() + b"\n")
    taken = {
        name: one
        for name, one in reports.grammars.items()
        if one.rows
        or one._before
        or one.num_timer_lines
        or one.facts
        or one.rates
        or one._paused_s
        or one._beside
    }
    if wording.breaks:
        assert not taken
        return
    assert wording.program in taken
    assert not wording.facts or not any(one.rows or one.num_timer_lines for one in taken.values())
    grammar = taken[wording.program]
    if wording.means:
        grammar.finish()
    if wording.facts:
        assert grammar.facts == values
        return
    assert len(taken) == 1
    if wording.pause and not wording.worth:
        seconds = values.get("whole_s", 0.0) + values.get("s", 0.0) * values.get("of", 0)
        assert grammar._beside == {(wording.pause, 0): pytest.approx(seconds)}
        return
    if "pause_s" in values:
        assert (grammar._paused_s, grammar.rows) == (values["pause_s"], [])
        return
    if "rate" in values:
        assert grammar.rates == [values.pop("rate")]
    if not values:
        return
    if is_of_timers:
        found = {name: one.ns[0] for name, one in grammar.timers.items()}
        assert found == {name: round(ms * MS) for name, ms in values.items()}
        return
    if wording.phases:
        named = {name: values.pop(name) * MS for name in list(values) if name != "ms"}
        assert {name: one.ns[0] for name, one in grammar.timers.items()} == named
        grammar.timers.clear()
    timers = {name: values.pop(name) for name in (*wording.timers, *wording.beside)}
    assert {name: one.ns[0] / 1e9 for name, one in grammar.timers.items()} == pytest.approx(timers)
    units = (("elapsed_ms", 1), ("elapsed_s", 1e3), ("elapsed_h", 3.6e6), ("since_s", 1e3))
    if elapsed := sum(values.get(name, 0.0) * unit for name, unit in units):
        epoch = values.get("epoch", 0) or values.get("nth", 1) - 1
        number = values["iteration"] + epoch * values.get("of", 0)
        assert grammar._before == (number, elapsed)
        return
    (row,) = grammar.rows
    number = values.pop("iteration", None)
    epoch, of = values.pop("epoch", 0) or values.pop("nth", 1) - 1, values.pop("of", 0)
    assert row.iteration == (None if number is None else number + epoch * of)
    span = number - values.pop("first", number) + 1 if number else 1
    seconds = [values.pop(n) * f / span for n, f in (("ms", 1e-3), ("s", 1)) if n in values]
    seconds += [values.pop("whole_s") / number] if "whole_s" in values and number else []
    seconds += [1 / values.pop("per_s")] if "per_s" in values else []
    seconds += [values.pop("tokens") / values["tokens_per_s"]] if "tokens" in values else []
    assert (row.duration_ns or 0) == pytest.approx(1e9 * sum(seconds))
    assert row.at_s is not None or not wording.stamped
    mfu = values.pop("mfu_percent", 0.0) / 100 or values.pop("mfu", 0.0)
    assert grammar.mfu == [mfu] * bool(mfu)
    if "batch" in values:
        assert grammar.facts["global_batch_size"] == values.pop("batch")
    assert {name: getattr(row, name) for name in values} == values


@pytest.mark.parametrize("wording", wordings(), ids=lambda one: one.program)
def test_signs_are_long_enough_to_be_found_wherever_they_begin(wording):
    assert all(len(sign) >= SHORTEST_SIGN for sign in wording.signs)
    assert any(sign in wording.example for sign in wording.signs)
    assert not re.search(
        r"(?<!\\)[*+](?!\?)", re.sub(r"\[.*?\][*+]| [*+]|\\[dW][*+]", "", wording.line)
    )


def lines(pattern: str, count: int = 9) -> str:
    """Lines with {i}, their number, {at}, a time of the day every 4 s, and {t}, 0.41 to 0.41 + i ms."""
    return "".join(
        pattern.format(
            i=i, n=10 * i, at=f"2026-01-01 12:00:{4 * i:02d}", t=f"0.41{i}", ms=f"41{i}.5"
        )
        + "\n"
        for i in range(count)
    )


UNKNOWN = {
    "unit after the number": (
        "step {i} | loss: 3.25 | lr 6e-04 | dt: {ms}ms | tok/sec: 1516.52",
        411.5,
    ),
    "unit in the name": (
        "{{'step': {i}, 'loss': 2.3, 'step_time_ms': {ms}, 'tokens_per_second': 12000}}",
        411.5,
    ),
    "unit of the name's fraction": ("iter: {i} loss 2.1 ms/step: {ms}", 411.5),
    "per step": ("Step {i}: {ms} ms/step, 3.2 seq/s", 411.5),
    "epoch before": (
        "[Epoch 1] Step {n}/1000, Loss: 2.31, step_time={t}s, data_time=0.120s",
        411.0,
    ),
    "no unit, by the lines' times": ("{at} iter {n} loss=2.0 time={ms}", 411.5),
    "no unit at all": ("iter {n} loss=2.0 time={t}", 411.0),
    "a rate": ("step={i} samples/s=128.5 it/s: 2.5 loss: 1.0", 400.0),
    "only the lines' times": ("{at},000 INFO iteration {n}: train loss 2.81", 400.0),
    "time of ten steps": ("{at} step {n}: loss 2.1, time: 3.9{i}s", 391.0),
    "time since the start": ("Batch {n}, elapsed: {at:.0}{n}.0 s, loss 2.1", 1000.0),
    "ranks": ("[rank3]: step {i} loss 2.0 step time: {t} s", 411.0),
}


@pytest.mark.parametrize(("pattern", "ms"), UNKNOWN.values(), ids=UNKNOWN)
def test_times_are_read_from_programs_that_no_table_lists(tmp_path, pattern, ms):
    path = tmp_path / "out.log"
    path.write_text("Namespace(lr=0.1, steps=3)\n" + lines(pattern) + "done\n")
    log = read_training_log(str(path))
    assert log.origin == "a training program"
    known = log.duration_ns[log.duration_ns != ABSENT]
    assert known[min(1, len(known) - 1)] / MS == pytest.approx(ms, rel=0.01)
    report = distprof.analyze(str(path))
    assert report.training_log.mean_ns is not None


@pytest.mark.parametrize(
    "text",
    [
        "step 1 of the installation\nstep 2 of the installation\nstep 3 took long\n",
        "INFO loaded batch 3 of file 7\nINFO loaded batch 4 of file 7\nINFO loaded batch 5\n",
        lines("epoch {i} of the moon: mass loss 3.2"),
        lines("step {i}: time: never"),
    ],
    ids=["prose", "batches without times", "epochs", "no number"],
)
def test_other_texts_are_no_logs_of_training(tmp_path, text):
    path = tmp_path / "out.log"
    path.write_text(text)
    with pytest.raises(distprof.DistprofError):
        read_training_log(str(path))


def test_waiting_for_data_by_the_programs_own_timer_is_the_finding(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        lines(
            "2026/01/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ {n}/7330]  lr: 1.9e-03  "
            "eta: 1:00:00  time: 0.5000  data_time: 0.3000  memory: 5000  loss: 1.23",
            count=9,
        )
    )
    report = distprof.analyze(str(path))
    assert [one.code for one in report.findings] == ["INP109"]
    assert report.findings[0].cost_ns_per_step == 300 * MS


LIGHTNING = """\
FIT Profiler Report

------------------------------------------------------------------------------------------------------
|  Action                                     |  Mean duration (s) |  Num calls |  Total time (s) |  Percentage % |
------------------------------------------------------------------------------------------------------
|  Total                                      |  -                 |  20104     |  100.2          |  100 %        |
------------------------------------------------------------------------------------------------------
|  run_training_epoch                         |  96.1              |  1         |  96.1           |  95.9         |
|  run_training_batch                         |  0.06              |  1000      |  60.0           |  59.9         |
|  [_TrainingEpochLoop].train_dataloader_next |  0.03              |  1000      |  30.0           |  29.9         |
|  [Strategy]DDPStrategy.backward             |  0.02              |  1000      |  20.0           |  20.0         |
"""


ADVANCED = """\
FIT Profiler Report

Profile stats for: run_training_batch rank: 0
         52031 function calls (51020 primitive calls) in 60.000 seconds

   Ordered by: cumulative time
   List reduced from 210 to 20 due to restriction <20>

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
     1000    0.010    0.000   60.000    0.060 automatic.py:150(run)
     1000    0.020    0.000   59.900    0.060 module.py:1290(optimizer_step)

Profile stats for: [_TrainingEpochLoop].train_dataloader_next rank: 0
         9031 function calls in 30.000 seconds

   Ordered by: cumulative time

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
     1000    0.010    0.000   30.000    0.030 fetchers.py:130(__next__)
"""


def test_the_statistics_of_lightnings_other_profiler_show_the_same(tmp_path):
    path = tmp_path / "profile.txt"
    path.write_text(ADVANCED)
    report = distprof.analyze(str(path))
    assert report.training_log.mean_ns == 90 * MS
    assert [one.code for one in report.findings] == ["INP109"]


def test_the_table_of_lightnings_profiler_shows_the_wait_for_data(tmp_path):
    path = tmp_path / "profile.txt"
    path.write_text(LIGHTNING)
    report = distprof.analyze(str(path))
    assert report.training_log.mean_ns == 90 * MS
    assert [one.code for one in report.findings] == ["INP109"]
    assert report.findings[0].cost_ns_per_step == 30 * MS


ASCEND = """\
Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble
0,10,700000.0,200000.0,100000.0,300000.0,100000.0,1000000.0,0.0
0,11,700000.0,210000.0,100000.0,310000.0,100000.0,1010000.0,0.0
0,12,700000.0,190000.0,100000.0,290000.0,100000.0,990000.0,0.0
"""


def test_the_steps_of_ascends_profiler_are_read(tmp_path):
    path = tmp_path / "step_trace_time.csv"
    path.write_text(ASCEND)
    report = distprof.analyze(str(path))
    log = report.training_log
    assert (log.origin, log.mean_ns) == ("Ascend's profiler", 1_000 * MS)
    text = REPORT.reporter("text")(report, RenderOptions())
    assert "1.00 s: computation 70.0 %, exposed communication 20.0 %\nIdle time 10.0 %" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "trace_view.json",
            '[{"name": "process_name", "ph": "M", "args": {"name": "Ascend Hardware"}}]',
        ),
        (
            "operator_details.csv",
            "Name,Call Stack,Host Self Duration(us),Host Total Duration(us),Device Self Duration(us)\na,b,1,2,3\n",
        ),
    ],
)
def test_other_files_of_ascends_profiler_are_named_with_the_way_out(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(distprof.InputError) as caught:
        distprof.analyze(str(tmp_path / name))
    assert "Ascend" in str(caught.value)
    assert "step_trace_time.csv" in str(caught.value)


def test_iterations_that_get_slower_are_found_with_their_number(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"step {i} | loss: 3.2 | dt: {300 + i % 7 if i < 400 else 420 + i % 5}ms\n"
            for i in range(600)
        )
    )
    report = distprof.analyze(str(path))
    found = next(one for one in report.findings if one.code == "STR113")
    assert found.steps == (400,)
    assert found.cost_ns_per_step == pytest.approx(119 * MS / 3, rel=0.05)


def test_a_span_that_ends_and_a_slow_growth_are_told_apart(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f"step {i} dt: {450 if 200 <= i < 300 else 300 + i % 7}ms\n" for i in range(600))
    )
    slow = distprof.analyze(str(path)).training_log.slow_span
    assert (slow.first_iteration, slow.last_iteration, slow.is_gradual) == (200, 299, False)
    path.write_text("".join(f"step {i} dt: {300 + i / 3:.1f}ms\n" for i in range(600)))
    slow = distprof.analyze(str(path)).training_log.slow_span
    assert slow is not None
    assert slow.is_gradual


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_schedules_are_no_slow_spans(tmp_path, seed):
    import numpy as np

    rng = np.random.default_rng(seed)
    noisy = 300 * np.exp(rng.normal(0, 0.08, 500)) + 400 * (rng.random(500) < 0.02)
    growing = 300 * (1 + np.arange(600) // 200) + rng.normal(0, 4, 600)
    for values in (noisy, growing):
        path = tmp_path / "train.log"
        path.write_text("".join(f"step {i} dt: {v:.1f}ms\n" for i, v in enumerate(values)))
        assert distprof.analyze(str(path)).training_log.slow_span is None


def test_old_timers_of_deepspeed_without_whole_steps_are_micro_batches(tmp_path):
    line = (
        "time (ms) | forward_microstep: 200.0 | backward_microstep: 300.0 | "
        "backward_inner_microstep: 250.0 | backward_allreduce_microstep: 50.0 | step_microstep: 0.0"
    )
    path = tmp_path / "train.log"
    path.write_text(f"{line}\n" * 4)
    log = read_training_log(str(path))
    assert log.origin == "DeepSpeed"
    assert log.duration_ns.tolist() == [500 * MS] * 4
    assert log.timers["bwd_allreduce_microstep"].tolist() == [50 * MS] * 4
    verdict = judge(distprof.analyze(str(path)))
    told = (verdict.detail, *verdict.why)
    assert any("bwd_allreduce_microstep) takes 50.0 ms, 10.0 %" in one for one in told)


LIGHTNING_FORMS = {
    "with calls": (
        "run_training_batch      |  0.04                   |100                    |  4.0      |  70.0  |\n"
        "get_train_batch         |  0.01                   |100                    |  1.0      |  17.5  |\n",
        50 * MS,
    ),
    "without calls": (
        "get_train_batch         |  0.01            |  1.0\n"
        "model_forward           |  0.02            |  2.0\n"
        "model_backward          |  0.03            |  3.0\n",
        60 * MS,
    ),
    "with tabs": (
        "get_train_batch     \t|  0.01            \t|  1.0        \n"
        "model_forward       \t|  0.02            \t|  2.0        \n"
        "model_backward      \t|  0.03            \t|  3.0        \n",
        60 * MS,
    ),
}


@pytest.mark.parametrize("form", LIGHTNING_FORMS)
def test_each_form_of_lightning_s_table_is_read(form, tmp_path):
    rows, ns = LIGHTNING_FORMS[form]
    path = tmp_path / "train.log"
    path.write_text("Profiler Report\n\nAction  |  Mean duration (s)  |  Total time (s)\n" + rows)
    log = read_training_log(str(path))
    assert log.duration_ns.tolist() == [ns]
    assert log.timers["get_train_batch"].tolist() == [10 * MS]


def test_a_step_that_several_ranks_report_without_a_prefix_counts_once(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"iter: {number}/3000 4% | loss: 16.{rank} | iter time: 1.0{rank}s | lr: 8.6E-04\n"
        for number in range(130, 140) for rank in range(4)
    ))  # fmt: skip
    log = read_training_log(str(path))
    assert log.iteration.tolist() == list(range(130, 140))


def test_a_time_that_may_cover_many_iterations_is_doubted_on_the_first_screen(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f"iter: {n} train_loss: 3.6 time(s): 307.7 s\n" for n in range(100, 900, 100))
    )
    why = judge(distprof.analyze(str(path))).why
    assert any("one iteration or of all since the last report" in sentence for sentence in why)
    path.write_text(
        "".join(f"iter: {n} train_loss: 3.6 iter_time: 3.1 s\n" for n in range(100, 900, 100))
    )
    assert not any(
        "does not say" in sentence for sentence in judge(distprof.analyze(str(path))).why
    )
