"""A sweep as text, Markdown and JSON: the sentences, the tables, and what is not said."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from distprof.artefacts.summary_file import Fingerprint, StepParts
from distprof.formats import RenderOptions
from distprof.verbs.sweep import CAUSES, ScalingReport
from distprof.verbs.sweep.measure import report_scaling
from distprof.verbs.sweep.show import SCALING
from tests.verbs.sweep.sweeps import MS, parts, runs

ALONE = parts(computation=90, host=6, other=4)
EIGHT = parts(computation=95, host=2, exposed_transfer=20, exposed_wait=6, other=2)
HEALTHY = [*runs(1, 100), *runs(2, 101), *runs(4, 102), *runs(8, 103)]
LOSSY = [*runs(1, 100, ALONE), *runs(8, 125, EIGHT)]


def shown(report, name="text", **options):
    return SCALING.reporter(name)(report, RenderOptions(**{"width": 100, **options}))


def flat(report):
    return " ".join(shown(report).split())


def of_cpus(summaries, **config):
    """The same runs on CPU ranks."""
    return [
        msgspec.structs.replace(
            run,
            fingerprint=msgspec.structs.replace(run.fingerprint, device="cpu", config=config),
        )
        for run in summaries
    ]


def test_the_first_line_says_how_much_is_lost_and_to_what():
    text = flat(report_scaling(LOSSY, source="runs/mine"))
    assert text.startswith("8 ranks reach 80.0 %")
    assert (
        "of the efficiency of 1 (weak scaling): a step takes 125 ms instead of 100 ms at full "
        "efficiency. Main cause:" in text
    )
    assert "exposed transfer, +20.0 ms of the +25.0 ms lost." in text
    assert "runs/mine" in text


def test_a_cause_that_takes_more_than_is_lost_is_said_so():
    bubble = parts(computation=80, bubble=40, other=5)
    report = report_scaling([*runs(1, 100, ALONE), *runs(8, 125, bubble)], source="x")
    text = flat(report)
    assert "pipeline bubble, +40.0 ms, while other parts shrank." in text
    assert "pipeline bubble takes more than that, while other parts shrank (40.0 ms)" in text


def test_a_healthy_sweep_has_no_finding():
    report = report_scaling(HEALTHY, source="x")
    assert report.findings == ()
    assert "8 ranks reach 97.1 %" in shown(report)


@pytest.mark.parametrize("name", ["text", "md"])
def test_causes_are_shown_with_what_they_add_up_to(name):
    text = shown(report_scaling(LOSSY, source="x"), name)
    for cause in ("exposed transfer", "imbalance and stragglers", "host", "computation grew"):
        assert cause in text
    assert "pipeline bubble" not in text
    assert "+25.0 ms" in text


def test_causes_that_nobody_could_see_are_shown_together_unless_all_are_wanted():
    small = parts(computation=90, host=6, other=4, copy=0.001, input=0.002)
    report = report_scaling([*runs(1, 100, ALONE), *runs(8, 125, small)], source="x")
    assert "2 smaller causes" in shown(report)
    assert "copies" not in shown(report)
    assert "copies" in shown(report, show_all=True)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width):
    many = [run for n in (1, 2, 4, 8, 16, 32, 64, 1024) for run in runs(n, 100 + n, EIGHT)]
    for report in (report_scaling(LOSSY, source="x"), report_scaling(many, source="x")):
        lines = shown(report, width=width).splitlines()
        assert max(map(cell_len, lines)) <= width


def test_repeats_that_differ_much_are_called_so():
    calm = flat(report_scaling(LOSSY, source="x"))
    assert "Runs differ widely" not in calm
    wild = [*runs(1, 100, repeats=(1, 1, 3.4)), *runs(2, 110)]
    text = flat(report_scaling(wild, source="x"))
    assert "a step on 1 rank took 100 ms in one run and 340 ms in another" in text
    assert "too wide to be meaningful" in text


def test_a_law_that_misses_the_largest_size_is_not_continued():
    bent = [run for i in range(7) for run in runs(2**i, 100 + 9 * i)]
    text = flat(report_scaling(bent, source="x"))
    assert "No law fits these runs: on 64 ranks, the measured efficiency is 64.9 %" in text
    assert "If scaling continues by" not in text
    assert "Beyond the measured sizes" not in text


def test_an_extrapolation_that_may_be_anything_is_not_made():
    certain = flat(report_scaling(HEALTHY, source="x"))
    assert "If scaling continues by" in certain
    assert "do not predict the efficiency on more than" not in certain
    vague = [*runs(1, 100, repeats=(0.8, 1, 1.3)), *runs(2, 150, repeats=(0.8, 1, 1.3))]
    text = flat(report_scaling(vague, source="x"))
    assert "These runs do not predict the efficiency on more than 2 ranks" in text
    assert "If scaling continues by" not in text


def test_ranks_that_shared_processors_are_told_and_only_then():
    sweep = of_cpus([*runs(1, 100), *runs(2, 101), *runs(4, 200)])
    assert "From 4 ranks on, ranks share 2 CPUs" in flat(
        report_scaling(sweep, source="x", num_cpus=2)
    )
    assert "share" not in flat(report_scaling(sweep, source="x", num_cpus=4))
    assert "share" not in flat(report_scaling(sweep, source="x"))
    threads = of_cpus([*runs(1, 100), *runs(2, 101)], **{"training.threads": "2"})
    assert "From 2 ranks on" in flat(report_scaling(threads, source="x", num_cpus=2))
    asleep = of_cpus([*runs(1, 100), *runs(4, 101)], **{"training.compute": "sleep"})
    assert "share" not in flat(report_scaling(asleep, source="x", num_cpus=2))


@pytest.mark.parametrize(
    ("first", "second", "is_like"),
    [
        ("torchrun --nproc-per-node 1 train.py", "torchrun --nproc-per-node 2 train.py", True),
        ("torchrun --nproc-per-node=1 t.py", "torchrun --nproc-per-node=2 t.py", True),
        ("python a.py --lr 1 -n 1", "python a.py --lr 1 -n 2", True),
        ("python a.py 1", "python b.py 2", False),
        ("python a.py --layers 4 1", "python a.py --layers 8 2", False),
    ],
)
def test_commands_that_differ_in_the_number_of_ranks_are_the_same(first, second, is_like):
    sweep = [
        msgspec.structs.replace(
            run, fingerprint=msgspec.structs.replace(run.fingerprint, workload=command)
        )
        for ranks, command in ((1, first), (2, second))
        for run in runs(ranks, 100)
    ]
    assert (report_scaling(sweep, source="x").notes == ()) is is_like


def test_no_sweep_is_a_sentence_in_every_format():
    for summaries in ([], runs(2, 100)):
        report = report_scaling(summaries, source="x")
        assert shown(report).startswith("Not a sweep: Scaling needs runs of at least two sizes")
        assert shown(report, "md").startswith("### Not a sweep")
        assert json.loads(shown(report, "json"))["scaling"]["sizes"] == []


def test_names_that_a_terminal_would_obey_are_harmless():
    sweep = [
        msgspec.structs.replace(
            run,
            label="\x1b[31m|<b>",
            fingerprint=Fingerprint(
                world_size=run.fingerprint.world_size, device="\x1b[31m<b>|", workload=f"\x9b|{i}"
            ),
        )
        for i, run in enumerate([*runs(1, 100), *runs(2, 110)])
    ]
    report = report_scaling(sweep, source="\x1b]0;x\x07<i>")
    for name in ("text", "md"):
        text = shown(report, name)
        assert not any(mark in text for mark in ("\x1b", "\x9b", "\x07"))
    assert "<b>" not in shown(report, "md")


def test_json_holds_the_whole_result():
    report = report_scaling(LOSSY, source="x")
    assert msgspec.json.decode(shown(report, "json"), type=ScalingReport) == report


part = st.integers(0, 10**12)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.floats(0.001, 1e6), min_size=2, max_size=5),
    values=st.lists(part, min_size=9, max_size=9),
    width=st.integers(60, 140),
    show_all=st.booleans(),
)
def test_any_sweep_fits_the_width_and_its_shown_parts_are_all_of_the_loss(
    steps, values, width, show_all
):
    if not sum(values):
        return
    traced = StepParts(span_ns=sum(values), **dict(zip(CAUSES, values, strict=True)))
    sweep = [run for i, ms in enumerate(steps) for run in runs(2**i, ms, traced)]
    report = report_scaling(sweep, source="x", mode="weak")
    for size in report.scaling.sizes[1:]:
        assert sum(loss.lost_ns for loss in size.losses) == size.step_ns - size.ideal_step_ns
    text = shown(report, width=width, show_all=show_all)
    assert max(map(cell_len, text.splitlines())) <= width
    shown(report, "md")


def test_the_shares_of_the_drawn_line_are_those_of_the_step():
    text = shown(report_scaling(LOSSY, source="x"), width=100)
    line = next(row for row in text.splitlines() if "▓" in row and "·" not in row)
    drawn = line.split()[1]
    assert drawn.count("#") / len(drawn) == pytest.approx(
        100 * MS / (100 + 20 + 6 + 5) / MS, abs=0.02
    )


def test_findings_link_to_their_rules_where_a_site_is_known():
    report = report_scaling(LOSSY, source="x", site="https://docs.example.org")
    assert report.findings
    for finding in report.findings:
        assert finding.docs_url.endswith(f"/{finding.docs.removesuffix('.md')}.html")
        assert f"]({finding.docs_url})" in shown(report, "md")
        assert f'href="{finding.docs_url}"' in shown(report, "html")
    assert "](http" not in shown(report_scaling(LOSSY, source="x"), "md")
