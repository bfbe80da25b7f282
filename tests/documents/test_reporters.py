"""Every reporter on every sample; golden text; nothing hostile gets through."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from distprof.artefacts.run_file import Fault
from distprof.documents.markdown import MAX_BYTES
from distprof.documents.page import GROUPS
from distprof.documents.saved import Report
from distprof.documents.text import MAX_BRIEF
from distprof.errors import UsageError
from distprof.formats import RenderOptions, find_reporter, format_of_file
from distprof.sections.capture import NodeClock
from distprof.sections.report import RunInfo
from distprof.sections.shows import origin
from distprof.sections.whatif import RepairPlan
from distprof.terms import FORMATS
from tests.documents.job_samples import SAMPLES, failed_job, hostile_job, reference_run, untraced
from tests.documents.samples import (
    MS,
    NASTY,
    capture,
    finding,
    healthy,
    many_ranks,
    nasty,
    report_of,
    straggler,
    waterfall_of,
)

GOLDEN = Path(__file__).parent / "golden"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def shown(report: Report, name: str = "text", **options: object) -> str:
    """The full report; ``full=False`` for the short one."""
    return find_reporter(name)(report, RenderOptions(**{"full": True, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [80, 120])
def test_text_is_as_agreed(name: str, width: int, golden: Callable[[Path, str], None]) -> None:
    text = shown(SAMPLES[name](), width=width)
    golden(GOLDEN / f"{name}-{width}.txt", text)


@pytest.mark.parametrize("width", [44, 60, 80])
def test_what_is_said_about_a_finding_keeps_its_indent(width: int) -> None:
    """Figures that take more than a line continued at the margin."""
    lines = shown(straggler(), width=width).split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("  1. "))
    said = lines[begin : lines.index("", begin)]
    assert len(said) > 4
    assert all(re.match(r" {2}\d+\. | {5}\S", line) for line in said), said


@pytest.mark.parametrize("name", ["straggler", "failed-job", "healthy"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_glyph_of_the_drawn_step_is_in_its_legend(name: str, width: int) -> None:
    """Copies of 0.67 % were drawn, but named nowhere."""
    above, _, below = shown(SAMPLES[name](), width=width).partition(" per step: ")
    drawn = set("█▓▒▞▚░").intersection(above)
    assert drawn
    assert drawn <= set(below.partition("\n\n")[0]) | set(above.splitlines()[-1])


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("full", [True, False])
def test_a_command_is_one_line_that_can_be_copied(full: bool, width: int) -> None:
    """A path that is longer than the line was cut in two, and the copied command was not it."""
    report = straggler()
    path = f"/data/{'long/' * 30}run"
    text = shown(msgspec.structs.replace(report, run=_at(report, path)), width=width, full=full)
    commands = text.partition("\nNext\n")[2].splitlines()
    assert any(line.startswith(f"  distprof analyze {path} --") for line in commands)


def test_python_stacks_are_in_the_line_of_evidence_unless_their_cost_is_known() -> None:
    """They slow launches by an unknown share, and a CPU that is late is then the profiler's."""
    plain = reference_run()
    traced = msgspec.structs.replace(
        plain, capture=msgspec.structs.replace(plain.capture, has_python_stacks=True)
    )
    unknown = msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, overhead=()))
    told = "Python stacks slowed the CPU"
    assert [told in shown(one, full=False) for one in (plain, traced, unknown)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("residuals", "violated", "told"),
    [
        ((3_100, 5_200), 0, "clocks agree to 5.20 µs"),
        ((3_100, 5_200), 4, "clocks agree to 5.20 µs"),
        ((3_100, 5_200), 6, "clocks doubtful: 6 of 100 collectives end before all ranks start"),
        ((3_100, None), 0, "1 of 2 clocks not compared"),
        ((3_100,), 0, ""),
        ((3_100,), 50, "clocks doubtful: 50 of 100 collectives end before all ranks start"),
    ],
)
def test_doubtful_clocks_are_in_the_line_of_evidence(
    residuals: tuple[int | None, ...], violated: int, told: str
) -> None:
    report = healthy()
    clocks = tuple(
        NodeClock(name=f"n{i}", ranks=(i,), offset_ns=0, drift_ppm=0.0, residual_ns=residual)
        for i, residual in enumerate(residuals)
    )
    changed = msgspec.structs.replace(
        report.capture,
        clocks=clocks,
        num_causality_checked=100,
        num_causality_violations=violated,
    )
    line = origin(msgspec.structs.replace(report, capture=changed))
    assert line.endswith(f" · {told}") if told else "clock" not in line


@pytest.mark.parametrize("color", [True, False])
def test_a_long_path_counts_for_the_rows_it_takes(color: bool) -> None:
    """Thirty lines of which three are longer than the terminal would push the verdict out."""
    for make in SAMPLES.values():
        report = make()
        path = f"/data/{'long/' * 45}run"
        there = msgspec.structs.replace(report, run=_at(report, path))
        text = shown(there, width=80, full=False, color=color)
        rows = [-(-len(COLOR.sub("", line)) // 80) or 1 for line in text.splitlines()]
        assert sum(rows) <= MAX_BRIEF


def _at(report: Report, path: str) -> RunInfo:
    return msgspec.structs.replace(report.run, source=path)


@pytest.mark.parametrize("name", SAMPLES)
def test_markdown_is_as_agreed(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.md", shown(SAMPLES[name](), "md"))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    told, _, _ = shown(SAMPLES[name](), width=width).partition("\nNext\n")
    assert max(map(len, told.splitlines())) <= width


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("width", [20, 40, 60, 72])
def test_a_narrow_terminal_loses_columns_but_no_digit(name: str, width: int) -> None:
    text = shown(SAMPLES[name](), width=width)
    cut = re.findall(r"\s-?[\d,]+(?:\.\d*)?(?: [mµn]?s?| [kMGT]?B?|)…", text)
    assert cut == []
    assert "sha…" not in text


def test_columns_without_room_are_named() -> None:
    assert "no room for: " in shown(straggler(), width=40)
    assert "no room for: " not in shown(straggler(), width=80)


def test_a_long_collective_makes_no_slow_device() -> None:
    report = straggler()
    row = msgspec.structs.replace(
        report.kernels.kernels[0], kind="communication", slowest_rank=7, spread=2.5
    )
    kernels = msgspec.structs.replace(report.kernels, kernels=(row,))
    text = shown(msgspec.structs.replace(report, kernels=kernels))
    assert "2.50 ×" not in text
    as_computation = msgspec.structs.replace(row, kind="computation")
    kernels = msgspec.structs.replace(report.kernels, kernels=(as_computation,))
    assert "7 (2.50 ×)" in shown(msgspec.structs.replace(report, kernels=kernels))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("show_all", [False, True])
@pytest.mark.parametrize("reporter", ["text", "brief", "json", "md", "html"])
def test_every_reporter_shows_every_sample(name: str, show_all: bool, reporter: str) -> None:
    text = shown(SAMPLES[name](), reporter, show_all=show_all)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize("reporter", ["text", "brief", "json", "md", "html"])
@pytest.mark.parametrize("report", [nasty(), hostile_job()], ids=["traces", "job"])
@pytest.mark.parametrize("show_all", [False, True])
def test_hostile_names_never_reach_the_reader_raw(
    reporter: str, report: Report, show_all: bool
) -> None:
    text = shown(report, reporter, show_all=show_all)
    assert not CONTROL.search(text)
    assert NASTY not in text


def test_hostile_names_add_no_style_to_coloured_text() -> None:
    text = shown(nasty(), color=True, width=100)
    assert not CONTROL.search(COLOR.sub("", text))
    assert "[bold]b[/bold]" in COLOR.sub("", text)


def test_hostile_names_stay_inside_their_markdown_cell() -> None:
    text = shown(nasty(), "md") + shown(hostile_job(), "md", show_all=True)
    assert "<script" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(bars) == 1, block


def test_text_without_colour_holds_no_escape_code() -> None:
    assert "\x1b" not in shown(straggler(), color=False)
    assert "\x1b[" in shown(straggler(), color=True)


def test_the_verdict_is_the_first_line() -> None:
    assert shown(straggler(), width=120).startswith(
        "Rank 2 holds the others up: 31.0 % of each step\nThey wait 6.91 ms of every step for it."
    )


def test_shown_parts_of_a_step_add_up_to_the_shown_sum() -> None:
    section = shown(straggler()).split("Where a step goes")[1].split("\n\n")[0]
    times = [float(t) for t in re.findall(r"([\d.]+) ms", section)]
    assert round(sum(times[:-1]), 2) == times[-1] == 22.3


def test_five_findings_are_shown_and_the_rest_is_counted() -> None:
    text = shown(many_ranks(), saved_as="out/report.json")
    assert text.count("fix:") == 5
    assert "and 3 more: distprof report out/report.json --all" in text
    assert shown(many_ranks(), show_all=True).count("fix:") == 8


def test_more_than_twelve_ranks_are_folded_and_outliers_kept() -> None:
    section = shown(many_ranks()).split("Breakdown by rank")[1].split("\n\n")[0]
    first_words = [line.split()[0] for line in section.splitlines()[2:]]
    assert first_words == ["min", "median", "max", "37"]


def test_all_ranks_are_shown_on_request() -> None:
    section = shown(many_ranks(), show_all=True).split("Breakdown by rank")[1].split("\n\n")[0]
    assert len(section.splitlines()) == 2 + 64


def test_unknown_is_a_dash_and_never_zero() -> None:
    text = shown(SAMPLES["single-rank"]())
    row = next(line for line in text.splitlines() if line.strip().startswith("all_reduce"))
    assert row.split()[-3:] == ["–", "–", "–"]


def test_rules_with_the_same_reason_share_a_line() -> None:
    text = shown(straggler(), width=120)
    assert "TEL101 clocks-throttled, TEL102 device-too-hot  no device telemetry" in text


def test_markdown_stays_below_the_limit_of_a_comment() -> None:
    findings = tuple(finding(f"COM{i}", message="x|" * 5_000) for i in range(40))
    ranks = [waterfall_of(r, computation_ns=10 * MS + r) for r in range(12)]
    huge = report_of(ranks, findings=findings)
    text = shown(huge, "md")
    assert len(text.encode()) < MAX_BYTES


def test_what_does_not_fit_into_markdown_is_said_to_be_missing() -> None:
    findings = tuple(finding(f"COM{i}", message="<" * 990, fix="<" * 990) for i in range(5))
    from tests.documents.samples import all_reduce, kernels

    classes = tuple(all_reduce(group="|" * 119, axis=None) for _ in range(8))
    base = straggler()
    report = report_of(
        list(base.waterfall.ranks),
        findings=findings,
        kernels=kernels(),
        capture=base.capture.__class__(
            **{
                **{f: getattr(base.capture, f) for f in base.capture.__struct_fields__},
                "notes": tuple(f"{i}" + "<" * 990 for i in range(40)),
            }
        ),
        collectives=base.collectives.__class__(num_ranks=8, num_steps=10, classes=classes),
    )
    text = shown(report, "md")
    assert len(text.encode()) < MAX_BYTES
    assert "does not fit" in text
    assert "does not fit" not in shown(report, "md", show_all=True)


def test_a_note_that_is_cut_says_so() -> None:
    ranks = [waterfall_of(0, computation_ns=MS)]
    report = report_of(ranks, capture=capture((0,), notes=("word " * 200,)))
    assert "word…" in shown(report)


def test_many_notes_are_cut_and_counted_unless_all_are_asked_for() -> None:
    notes = tuple(f"Rank {i} was damaged." for i in range(40))
    ranks = [waterfall_of(0, computation_ns=MS)]
    report = report_of(ranks, capture=capture((0,), notes=notes))
    assert "and 28 more" in shown(report)
    assert "Rank 39 was damaged" not in shown(report)
    assert "Rank 39 was damaged" in shown(report, show_all=True)


def test_a_note_is_said_once_and_starts_with_a_capital_but_paths_stay_as_they_are() -> None:
    notes = ("one thing.", "One thing", "a/b.json is odd.", "windows were found so")
    ranks = [waterfall_of(0, computation_ns=MS)]
    text = shown(report_of(ranks, capture=capture((0,), notes=notes)))
    assert text.count("One thing") == 1
    assert "· a/b.json is odd\n" in text


def test_a_healthy_report_says_that_there_are_no_findings() -> None:
    assert "Findings  none" in shown(healthy())
    assert "**Findings:** none" in shown(healthy(), "md")


def test_formats_are_found_by_name_and_by_file_ending() -> None:
    assert (
        *("text", "brief", "json", "md", "html"),
        *("github", "gitlab", "sarif", "junit"),
    ) == FORMATS
    assert format_of_file("out/REPORT.MD") == "md"
    assert format_of_file("report.htm") == "html"
    assert format_of_file("distprof.sarif") == "sarif"
    assert format_of_file("report") is None
    with pytest.raises(UsageError, match="choose from text, brief, json, md, html"):
        find_reporter("pdf")


def test_a_failed_jobs_report_begins_with_what_happened() -> None:
    assert shown(failed_job()).startswith("Rank 1 was killed (SIGKILL) after step 14\n")
    assert shown(failed_job(), "md").startswith("### Rank 1 was killed (SIGKILL) after step 14\n")


def test_faults_and_what_probes_cost_are_said_before_any_table() -> None:
    head = shown(reference_run(), width=120).split("Where a step goes")[0]
    assert "injected on purpose: routing-skew=0:4\n" in head
    assert "tracing 4.10 % of a step (2.00 % to 6.30 %)" in head
    assert "always-on probes 0.30 % of a step (−0.20 % to 0.80 %)" in head


def test_peers_of_a_failed_rank_are_one_line_and_their_words_shown_on_request() -> None:
    assert "lost a peer" in shown(failed_job())
    assert "Connection closed" not in shown(failed_job())
    assert "Connection closed" in shown(failed_job(), show_all=True)


def test_a_run_without_traces_tells_its_step_log() -> None:
    text = shown(untraced(), width=200)
    assert text.startswith(
        "A step takes 46.0 ms (median of 22 steps), 23.0 % of it waiting for input\n"
        "No rank was traced (ranks 0-1: always-on mode)"
    )
    assert "2 ranks, none traced · 30 steps logged" in text


def test_probes_that_cannot_work_here_are_no_news() -> None:
    assert "no NVIDIA driver" not in shown(reference_run())
    assert "no NVIDIA driver" in shown(reference_run(), show_all=True)
    assert "7 of 27 lost (rank 1)" in shown(reference_run())


# The short report ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_the_short_report_is_as_agreed(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}-short.txt", shown(SAMPLES[name](), width=80, full=False))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [80, 120])
def test_the_short_report_fits_a_screen_and_begins_as_the_full_one(name: str, width: int) -> None:
    short = shown(SAMPLES[name](), width=width, full=False).splitlines()
    full = shown(SAMPLES[name](), width=width).splitlines()
    assert len(short) <= MAX_BRIEF
    assert short[0] == full[0]
    assert max(map(len, short)) <= width


def test_a_finding_that_gives_back_nothing_is_left_to_the_full_report() -> None:
    report = msgspec.structs.replace(
        straggler(),
        plan=RepairPlan(step_ns=100 * MS),
        findings=(
            finding("STR101", recoverable_ns=20 * MS, remaining_ns=20 * MS),
            finding("COM102", recoverable_ns=40 * MS, remaining_ns=MS // 2),
        ),
    )
    short = shown(report, full=False)
    assert "STR101" in short
    assert "COM102" not in short
    assert "and 1 more with --full" in short


@pytest.mark.parametrize("num_before", [1, 2, 4])
@pytest.mark.parametrize("num_faults", [0, 9])
def test_the_short_report_shows_a_repair_of_its_plan_behind_other_findings(
    num_before: int, num_faults: int
) -> None:
    """What precedes the plan, such as a busy machine, costs far more and cannot be simulated."""
    report = straggler()
    fault = Fault(kind="slow-rank", target=1, amount=2.25, text="slow-rank=1:2.25")
    report = msgspec.structs.replace(
        report,
        job=msgspec.structs.replace(report.job, faults=(fault,) * num_faults),
        findings=(
            *(finding(f"COM10{n}", recoverable_ns=None) for n in range(num_before)),
            *report.findings,
        ),
    )
    short = shown(report, width=80, full=False)
    assert f"{num_before + 1}. rank 2 fixed" in short
    assert len(short.splitlines()) <= MAX_BRIEF


def test_the_command_for_the_rest_stands_next_to_its_number_where_room_is_short() -> None:
    report = straggler()
    short = shown(report, width=80, full=False)
    assert "and 1 more: distprof analyze traces/job-17 --full" in short
    assert "Next" not in short
    long = "traces/" + "a" * 80
    run = msgspec.structs.replace(report.run, source=long)
    short = shown(msgspec.structs.replace(report, run=run), width=80, full=False)
    assert " more with --full" in short
    assert f"  distprof analyze {long} --full" in short


def test_no_two_parts_of_a_step_are_drawn_alike() -> None:
    glyphs = [group.glyph for group in GROUPS]
    assert len(set(glyphs)) == len(glyphs)


def test_shares_stand_next_to_the_length_of_the_step() -> None:
    assert "22.3 ms per step: " in shown(straggler(), full=False)
    assert "22.3 ms per step: " in shown(straggler())


def test_one_section_is_shown_alone() -> None:
    text = shown(straggler(), full=False, sections=("stragglers",))
    assert "Stragglers" in text
    assert "Breakdown" not in text
    assert "Findings" not in text
    both = shown(straggler(), "md", sections=("stragglers", "findings"))
    assert "Stragglers" in both
    assert "STR101" in both


def test_a_section_without_anything_says_why() -> None:
    text = shown(straggler(), full=False, sections=("moe",))
    assert "Nothing to show" in text
