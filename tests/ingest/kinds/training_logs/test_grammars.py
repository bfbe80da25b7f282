"""Ways of writing, one line of each with its answer written out by hand."""

# ruff: noqa: E501 - lines of logs are as long as they are

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds.logs import fits_training_log
from distprof.ingest.training_logs.read import read_training_log
from distprof.schema import ABSENT

MS = 1_000_000

MEGATRON = """\
using world size: 8, data-parallel-size: 2, tensor-model-parallel size: 1, pipeline-model-parallel size: 4
  micro_batch_size ................................ 2
  global_batch_size ............................... 64
  seq_length ...................................... 1024
  virtual_pipeline_model_parallel_size ............ None
time (ms) | load-checkpoint: 0.35
 iteration       10/    1000 | consumed samples:  640 | elapsed time per iteration (ms): 2000.0 | learning rate: 0.0 | global batch size:    64 | number of nan iterations:   0 |
time (ms) | forward-compute: 306.62 | forward-recv: 527.58 | backward-compute: 575.17[Rank 7] (after 10 iterations) memory (MB) | allocated: 21633.0859375
glued iteration       20/    1000 | consumed samples: 1280 | elapsed time per iteration (ms): 1000.5 | global batch size:    64 | lm loss: 1.25E+01 | number of nan iterations:   0 |
time (ms) | forward-compute: 300.00 | forward-recv: 100.00 | backward-compute: 500.25
"""

PRESENT_MEGATRON = """\
 [2026-09-20 21:31:06] iteration        3/       6 | elapsed time per iteration (ms): 291.2 | throughput per GPU (TFLOP/s/GPU): 50.7 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (210.40, 221.30)
    optimizer ......................................: (40.10, 41.20)
 [2026-09-20 21:31:07] iteration        6/       6 | elapsed time per iteration (ms): 286.6 | throughput per GPU (TFLOP/s/GPU): 51.5 |
max time across ranks (ms):
    forward-backward ...............................: 200.00
"""

TITAN = """\
\x1b[32m[rank1]:[titan] 2026-01-01 12:00:00,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1  \x1b[33mmemory:  0.95GiB(1.00%)  \x1b[34mtps: 1,234  \x1b[36mtflops: 5.60  \x1b[35mmfu: 1.20%\x1b[39m
[rank0]:[titan] 2026-01-01 12:00:00,500 - root - INFO - step:  1  loss:  8.0  memory: 0.95GiB(1.00%)  tps: 1,234  tflops: 5.60  mfu: 1.20%
[rank0]:[titan] 2026-01-01 12:00:20,500 - root - INFO - step: 11  loss:  7.5  memory: 0.95GiB(1.00%)  tps: 7,411  tflops: 58.60  mfu: 18.8%
"""

DEEPSPEED = """\
[2026-01-01 00:00:00,000] [INFO] [config.py:1] train_batch_size ............. 32
steps: 10 loss: 4.5012 iter time (s): 0.470 samples/sec: 68.085
[2026-01-01 00:00:01,000] [INFO] [logging.py:60:log_dist] [Rank 0] rank=0 time (ms) | fwd: 21.10 | bwd: 40.02
steps: 20 loss: 4.4012 iter time (s): 0.450 samples/sec: 71.111
"""

TRAINER = (
    "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.01}\n"
    "{'train_runtime': 123.4, 'train_samples_per_second': 10.0, 'train_steps_per_second': 1.25, "
    "'train_loss': 2.1, 'epoch': 3.0}\n"
)


def read(folder: Path, text: str, name: str = "train.log"):
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    assert fits_training_log(str(path))
    return read_training_log(str(path))


def test_megatrons_iterations_and_timers_are_read_though_glued(tmp_path):
    log = read(tmp_path, MEGATRON)
    assert log.origin == "Megatron-LM"
    assert log.iteration.tolist() == [10, 20]
    assert log.span.tolist() == [10, 10]
    assert log.duration_ns.tolist() == [2_000 * MS, 1_000_500_000]
    assert log.timers["forward-compute"].tolist() == [306_620_000, 300 * MS]
    assert log.timers["backward-compute"].tolist() == [575_170_000, 500_250_000]
    assert "allocated" not in log.timers
    assert "load-checkpoint" not in log.timers  # before the first iteration
    assert log.loss[1] == 12.5
    assert np.isnan(log.loss[0])


def test_megatrons_arguments_tell_the_layout(tmp_path):
    facts = read(tmp_path, MEGATRON).facts
    assert facts.world_size == 8
    assert facts.mesh == {"tp": 1, "pp": 4, "dp": 2}
    assert facts.num_micro_batches == 16  # 64 samples, of which a replica gets 32, by twos
    assert facts.virtual_stages is None
    assert facts.sequence_length == 1024


def test_what_scaling_needs_is_easy_to_reach(tmp_path):
    log = read(tmp_path, MEGATRON)
    assert log.median_step_ns == 1_000_500_000  # the first report does not count
    assert log.world_size == 8
    assert log.tokens_per_step == 64 * 1024


def test_timers_across_ranks_are_those_of_the_slowest(tmp_path):
    log = read(tmp_path, PRESENT_MEGATRON)
    assert log.is_of_slowest_ranks
    assert log.timers["forward-backward"].tolist() == [221_300_000, 200 * MS]
    assert log.timers["optimizer"].tolist() == [41_200_000, ABSENT]
    assert log.tflops.tolist() == [50.7, 51.5]


def test_ends_of_lines_and_compression_do_not_matter(tmp_path):
    plain = read(tmp_path, MEGATRON)
    dos = read(tmp_path, MEGATRON.replace("\n", "\r\n"), "dos.log")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(MEGATRON.encode()))
    packed = read_training_log(str(tmp_path / "packed.gz"))
    for log in (dos, packed):
        assert log.duration_ns.tolist() == plain.duration_ns.tolist()
        assert log.facts == plain.facts


def test_a_speedruns_steps_are_differences_of_the_time_so_far(tmp_path):
    text = (
        "step:0/3 val_loss:10.8 train_time:0ms step_avg:0.03ms\n"
        "step:1/3 train_time:73ms step_avg:73.23ms\n"
        "step:2/3 train_time:94ms step_avg:47.16ms\n"
        "step:2/3 val_loss:9.8 train_time:136ms step_avg:68.00ms\n"
        "step:3/3 train_time:154ms step_avg:51.33ms\n"
    )
    log = read(tmp_path, text)
    assert log.iteration.tolist() == [1, 2, 3]
    assert log.duration_ns.tolist() == [73 * MS, 21 * MS, 60 * MS]
    assert int(log.duration_ns.sum()) == 154 * MS


def test_titans_steps_are_timed_by_the_times_of_lines_of_one_rank(tmp_path):
    log = read(tmp_path, TITAN)
    assert log.origin == "torchtitan"
    assert log.iteration.tolist() == [1, 11]
    assert log.duration_ns.tolist() == [ABSENT, 2_000 * MS]  # 20 s for ten steps
    assert log.tokens_per_s_per_device.tolist() == [1234.0, 7411.0]
    assert any("2 ranks" in note for note in log.notes)


def test_deepspeeds_steps_and_its_breakdown(tmp_path):
    log = read(tmp_path, DEEPSPEED)
    assert log.origin == "DeepSpeed"
    assert log.duration_ns.tolist() == [470 * MS, 450 * MS]
    assert log.samples_per_s.tolist() == [68.085, 71.111]
    assert log.timers["fwd"].tolist() == [21_100_000, ABSENT]
    assert log.facts.global_batch_size == 32


def test_nanogpt_and_llm_c_tell_of_each_iteration(tmp_path):
    log = read(tmp_path, "iter 100: loss 3.1250, time 123.45ms, mfu 34.50%\n", "a.log")
    assert (log.iteration.tolist(), log.duration_ns.tolist()) == ([100], [123_450_000])
    line = (
        "step   10/19560 | loss 9.81 (+nanz)| norm 2.2 (+nanz)| lr 1.07e-05 | 210.11 ms | "
        "45.1% bf16 MFU | 2495 tok/s\n"
    )
    log = read(tmp_path, line, "b.log")
    assert log.origin == "llm.c"
    assert (log.duration_ns.tolist(), log.tokens_per_s.tolist()) == ([210_110_000], [2495.0])


def test_the_trainers_summary_is_a_mean_of_all(tmp_path):
    log = read(tmp_path, TRAINER)
    assert log.duration_ns.tolist() == [800 * MS]
    assert log.samples_per_s.tolist() == [10.0]


def test_the_longest_bar_without_a_name_is_the_training(tmp_path):
    bars = [
        f" {n}%|█| {n}/100 [0{n // 60}:{n % 60:02d}<01:00,  1.00s/it]" for n in range(0, 101, 10)
    ]
    named = [f"Map: {n}%|█| {n}/100 [0{n}:00<01:00,  9.00s/it]" for n in range(0, 9)]
    log = read(tmp_path, "\r".join([*named, *bars]))
    assert log.origin == "a progress bar"
    assert set(log.duration_ns.tolist()) == {1_000 * MS}
    assert log.span.tolist() == [50, 50]


def _bar(label: str, total: int, seconds: int, unit: str = "s/it") -> str:
    spans = [(total * n // 10, seconds * n // 10) for n in range(1, 11)]
    return "\r".join(
        f"{label}{n}%|█| {n}/{total} [{s // 60:02d}:{s % 60:02d}<00:01,  1.00{unit}]"
        for n, s in spans
    )


@pytest.mark.parametrize(
    ("short", "origin", "ns"),
    [("", "the progress bar “Generating”", 20_000 * MS), ("Training: ", "a progress bar", 20 * MS)],
)
def test_the_bar_that_took_the_time_is_described_unless_one_is_the_training(
    tmp_path, short, origin, ns
):
    log = read(tmp_path, "\n".join([_bar("Generating: ", 100, 2_000), _bar(short, 1_000, 20)]))
    assert log.origin == origin
    assert set(log.duration_ns.tolist()) == {ns}


def test_a_label_that_ends_with_a_loss_names_no_other_work(tmp_path):
    log = read(tmp_path, _bar("gen: -0.008: ", 100, 200))
    assert (log.origin, log.duration_ns[0]) == ("a progress bar", 2_000 * MS)


@pytest.mark.parametrize(("label", "unit"), [("Epochs: ", "s/it"), ("", "s/epoch")])
def test_a_bar_of_epochs_alone_says_so(tmp_path, label, unit):
    path = tmp_path / "train.log"
    path.write_text(_bar(label, 10, 1_000, unit) + "\n", encoding="utf-8")
    assert read_training_log(str(path)).origin == "a progress bar of epochs"
    assert distprof.analyze(path).verdict.headline.startswith("An epoch takes 100 s")


def test_a_deepspeed_log_with_flushes_of_the_allocator_is_short_of_memory(tmp_path):
    step = "steps: {n} loss: 4.5 iter time (s): 0.470 samples/sec: 8.505\n"
    flush = "[WARNING] [stage3.py:1:step] 1 pytorch allocator cache flushes since last step. this\n"
    often, once = tmp_path / "often.log", tmp_path / "once.log"
    often.write_text("".join(step.format(n=n) + flush for n in range(20)))
    once.write_text(flush + "".join(step.format(n=n) for n in range(20)))
    assert distprof.analyze(often).verdict.detail.startswith("GPU memory is short")
    assert "memory" not in distprof.analyze(once).verdict.detail


def test_retries_of_the_allocator_count_only_if_they_rise(tmp_path):
    step = "2026-01-01 12:00:{n:02},500 - root - INFO - step: {n}  loss:  7.9  memory: 12.30GiB\n"
    retries = (
        "[titan] 2026-01-01 12:00:00,500 - root - WARNING - {n} CUDA memory allocation retries.\n"
    )
    rising, steady = tmp_path / "rising.log", tmp_path / "steady.log"
    rising.write_text("".join(step.format(n=n) + retries.format(n=n + 3) for n in range(1, 20)))
    steady.write_text("".join(step.format(n=n) + retries.format(n=9) for n in range(1, 20)))
    assert "GPU memory is short" in distprof.analyze(rising).verdict.headline
    assert "memory" not in " ".join(distprof.analyze(steady).training_log.unavailable)


@pytest.mark.parametrize(
    ("label", "is_training"),
    [("Steps: ", True), ("Epoch 0: ", True), ("Training: ", True), ("Map: ", False),
     ("Tokenizing train dataset: ", False)],
)  # fmt: skip
def test_bars_of_a_training_may_have_a_label_and_be_short(tmp_path, label, is_training):
    bars = (f"{label}{n}%|█| {n}/4000 [00:{3 * n:02d}<9:00:00,  3.00s/it]" for n in range(9))
    path = tmp_path / "train.log"
    path.write_text("\r".join(bars) + "\n", encoding="utf-8")
    assert fits_training_log(str(path)) is is_training
    if is_training:
        log = read_training_log(str(path))
        assert (log.duration_ns.tolist(), log.span.tolist()) == ([3_000 * MS], [8])


def test_deepspeeds_throughput_is_timed_by_the_times_of_its_lines(tmp_path):
    line = "[2026-01-01 12:00:{at},500] [INFO] [timer.py:189:stop] 0/{n}, SamplesPerSec={n}.5, Mem=0.2GB\n"
    log = read(tmp_path, "".join(line.format(at=10 + n, n=n) for n in (10, 20, 30)))
    assert log.origin == "DeepSpeed"
    assert log.duration_ns.tolist() == [ABSENT, 1_000 * MS, 1_000 * MS]
    assert log.samples_per_s.tolist() == [10.5, 20.5, 30.5]


def test_deepspeeds_whole_steps_count_before_its_micro_steps(tmp_path):
    start = "[Rank 0] rank=0 time (ms) | "
    part = start + "fwd_microstep: 1.0 | bwd_microstep: 2.0 | step_microstep: 0.5\n"
    whole = start + "fwd: 10.0 | bwd: 20.0 | step: 5.0\n"
    rate = "global_step={n}, RunningAvgSamplesPerSec=12.1, CurrSamplesPerSec=12.{n}, Mem=1\n"
    log = read(tmp_path, part * 3, "parts.log")
    assert log.duration_ns.tolist() == [3_500_000] * 3
    assert any("micro-batch" in note for note in log.notes)
    text = "".join(part * 2 + whole + rate.format(n=n) for n in (1, 2))
    log = read(tmp_path, text, "both.log")
    assert log.duration_ns.tolist() == [35 * MS] * 2
    assert log.iteration.tolist() == [1, 2]
    assert log.samples_per_s.tolist() == [12.1, 12.2]
    assert set(log.timers) == {"fwd", "bwd", "step"}


def event(ms: int, key: str, value: str, metadata: str = "") -> str:
    return (
        f':::MLLOG {{"namespace": "", "time_ms": {ms}, "key": "{key}", "value": {value}, '
        f'"metadata": {{"file": "a.py"{metadata}}}}}\n'
    )


def test_mlperfs_losses_are_as_far_apart_as_their_samples(tmp_path):
    text = (
        event(0, "global_batch_size", "8")
        + event(1_000, "train_loss", "2.0", ', "samples_count": 80')
        + event(21_000, "train_loss", "1.5", ', "samples_count": 160')
        + event(25_000, "tracked_stats", '{"throughput": 3.93}')
        + event(25_000, "block_stop", "null")
        + event(99_000, "train_loss", "1.4", ', "samples_count": 240')
        + event(119_000, "train_loss", "1.3", ', "samples_count": 320').rstrip()
        + "another rank's words\n"
    )
    log = read(tmp_path, text)
    assert log.duration_ns.tolist() == [2_000 * MS, 2_000 * MS]  # not across the evaluation
    assert log.iteration.tolist() == [20, 40]
    assert log.printed_samples_per_s.tolist() == [3.93]
    assert log.num_unknown == 0


def test_mlperfs_times_of_steps_count_before_its_losses(tmp_path):
    steps = "".join(
        event(
            n, "tracked_stats", f'{{"train_step_time": {1.5 + n / 10}, "reduced_train_loss": {n}}}',
            f', "samples_count": {32 * 10 * n}',
        )
        for n in range(1, 4)
    )  # fmt: skip
    text = event(0, "global_batch_size", "32") + event(1, "train_loss", "9", "") + steps
    log = read(tmp_path, text)
    assert log.origin == "MLPerf logging"
    assert log.duration_ns.tolist() == [1_600 * MS, 1_700 * MS, 1_800 * MS]
    assert log.iteration.tolist() == [10, 20, 30]
    assert log.loss.tolist() == [1, 2, 3]
    assert log.samples_per_s.tolist() == [32 / 1.6, 32 / 1.7, 32 / 1.8]


def test_mlperfs_times_of_steps_that_are_means_since_the_last(tmp_path):
    text = event(0, "global_batch_size", "8") + "".join(
        event(n, "tracked_stats", '{"train_step_time": 2.0}', ', "samples_count": 384')
        for n in range(3)
    )
    log = read(tmp_path, text)
    assert log.duration_ns.tolist() == [2_000 * MS] * 3
    assert log.span.tolist()[1:] == [48, 48]


def test_mlperfs_throughput_as_an_event_of_its_own(tmp_path):
    text = event(0, "global_batch_size", "3264") + event(9, "throughput", "1632.0") * 3
    assert read(tmp_path, text).duration_ns.tolist() == [2_000 * MS] * 3


NEMO = (
    "Training epoch 0, iteration {n}/149 | lr: 3e-05 | consumed_samples: {n} | global_batch_size: "
    "16 | global_step: {n} | reduced_train_loss: 1.2{n} | train_step_timing in s: 0.{n} | "
    "val_loss: 4.106\n"
)
BAR = (
    "Epoch 0: :   1%|▏    | {n}/100 [00:10<02:00, v_num=, reduced_train_loss=1.2{n}, "
    "global_step={n}.0, consumed_samples=32.0, train_step_timing in s=0.{n}]\r"
)
DLLL = (
    'DLLL {{"timestamp": "1", "type": "LOG", "step": {n}, "data": {{"reduced_train_loss": 1.2{n}, '
    '"global_step": {n}.0, "train_step_timing in s": 0.{n}}}}}\n'
)


@pytest.mark.parametrize("line", [NEMO, BAR, DLLL], ids=["printer", "bar", "dllogger"])
def test_nemos_lines(line, tmp_path):
    log = read(tmp_path, "".join(line.format(n=n) for n in range(1, 6)))
    assert log.origin == "NeMo"
    assert log.iteration.tolist() == [1, 2, 3, 4, 5]
    assert log.duration_ns.tolist() == [n * 100 * MS for n in range(1, 6)]
    assert log.loss.tolist() == pytest.approx([1.21, 1.22, 1.23, 1.24, 1.25])


def test_absurd_numbers_of_steps_are_not_known(tmp_path):
    log = read(tmp_path, NEMO.format(n=1) + NEMO.format(n=2).replace("step: 2", f"step: {9e90}"))
    assert log.iteration.tolist() == [1, 2]  # as the line's own count says
    text = event(0, "global_batch_size", "1") + "".join(
        event(ms, key, value, f', "samples_count": {samples}')
        for ms, key, value, samples in [
            (1, "train_loss", "1.0", 1.0), (9, "train_loss", "1.0", 1e200),
            (9, "tracked_stats", '{"train_step_time": 1.0}', 1e200),
        ]
    )  # fmt: skip
    assert read(tmp_path, text).iteration.tolist() == [ABSENT]


@pytest.mark.parametrize("num_ranks", [1, 8], ids=["few bars", "very many bars"])
def test_bars_of_all_ranks_tell_the_same_as_those_of_one(tmp_path, num_ranks):
    path, bars, total = tmp_path / "log.txt", [], 3_000
    for step in range(1, total + 1):
        second = step * 7 // 5 + (step > 2_000) * (step - 2_000)  # then the training slows down
        shown = f"{second // 3600}:{second // 60 % 60:02}:{second % 60:02}"
        bars += [f"{step // 30:3}%|#  | {step}/{total} [{shown}<1:00:00, 1.40s/it]"] * num_ranks
        bars += [f" 50%|#  | {step % 30}/60 [00:{step % 60:02}<00:20, 2.00it/s]"] * (step % 9 == 0)
    path.write_text("\r".join(bars) + "\n")
    log = read_training_log(str(path))
    assert log.iteration[-1] > 2_900
    assert np.median(log.duration_ns) == pytest.approx(1.4e9, rel=0.02)
    assert log.duration_ns[-1] == pytest.approx(2.4e9, rel=0.02)


def test_nemos_bar_prints_a_step_again(tmp_path):
    text = "".join(BAR.format(n=n) * 3 for n in range(1, 4))
    assert read(tmp_path, text).iteration.tolist() == [1, 2, 3]
    assert read(tmp_path, NEMO.format(n=7) * 2).samples_per_s.tolist() == [pytest.approx(16 / 0.7)]


def test_mlperfs_throughput_alone_gives_the_time_of_a_batch(tmp_path):
    text = event(0, "global_batch_size", "3264") + "".join(
        event(9, "tracked_stats", f'{{"imgs_sec": {rate}}}') for rate in (1632, 3264)
    )
    log = read(tmp_path, text)
    assert log.duration_ns.tolist() == [2_000 * MS, 1_000 * MS]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "step,step_time_ms,loss\n1,10.5,3.0\n2,11.5,2.9\n"),
        ("b.jsonl", '{"step": 1, "step_time_s": 0.0105}\n{"step": 2, "step_time_s": 0.0115}\n'),
        ("c.csv", "\ufeffIteration,Iteration-Time\r\n1,0.0105\r\n2,0.0115\r\n"),
    ],
)
def test_a_table_of_steps_has_its_unit_in_the_name(tmp_path, name, text):
    log = read(tmp_path, text, name)
    assert log.iteration.tolist() == [1, 2]
    assert log.duration_ns.tolist() == [10_500_000, 11_500_000]
    assert bool(log.notes) == name.startswith("c")


def test_series_by_iteration_count_what_is_no_number(tmp_path):
    text = (
        '{"lm loss": {"start_step": 1, "step_interval": 5, "values": {"5": 3.5}}, "iteration-time":'
        ' {"start_step": 1, "step_interval": 5, "values": {"10": 12.5, "5": 17.0, "1": "nan"}}}'
    )
    log = read(tmp_path, text, "golden.json")
    assert log.iteration.tolist() == [5, 10]
    assert log.duration_ns.tolist() == [17_000 * MS, 12_500 * MS]
    assert log.loss[0] == 3.5
    assert log.num_unknown == 1


def test_what_a_trainer_saves_has_its_time_at_its_end(tmp_path):
    losses = [{"loss": 1.0, "step": n} for n in range(9_000)]
    evaluation, whole = {"eval_runtime": 25.0}, {"train_runtime": 125.0}
    whole |= {"train_samples_per_second": 8.0, "train_steps_per_second": 0.8}
    state = {"log_history": [*losses, evaluation, whole]}
    log = read(tmp_path, json.dumps(state, indent=2), "trainer_state.json")
    assert log.duration_ns.tolist() == [1_000 * MS]  # of 125 s, 25 s are those of the evaluation


def test_iterations_that_go_back_are_a_restart_whose_first_report_does_not_count(tmp_path):
    lines = [f"iter {n}: loss 3.0, time {t}ms, mfu 1.0%\n" for n, t in
             ((1, 900), (2, 100), (3, 100), (2, 800), (3, 100))]  # fmt: skip
    log = read(tmp_path, "".join(lines))
    assert log.num_restarts == 1
    assert log.steady_ns.tolist() == [100 * MS] * 3


@pytest.mark.parametrize(
    "text",
    ["", "hello\n", '{"traceEvents": []}', "iteration 1/2 | nothing of time |\n", "a,b\n1,2\n"],
)
def test_what_tells_of_no_iteration_is_no_training_log(tmp_path, text):
    path = tmp_path / "other.txt"
    path.write_text(text, encoding="utf-8")
    assert not fits_training_log(str(path))
    with pytest.raises(InputError, match="training program"):
        read_training_log(str(path))


def test_folders_and_missing_files_are_no_training_log(tmp_path):
    assert not fits_training_log(str(tmp_path))
    assert not fits_training_log(str(tmp_path / "none.log"))
