"""Tables of experts: what they show, and what they leave out."""

from pathlib import Path

import msgspec
import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from distprof.sections.moe import (
    MoeDrift,
    MoeExchange,
    MoeLayer,
    MoePair,
    MoePlacement,
    MoeRank,
    MoeResult,
)
from distprof.sections.moe.show import (
    exchanges_table,
    expert_ranks_table,
    moe_table,
    pairs_table,
    placement_table,
    ranks_line,
)
from distprof.sections.shows import judge, origin
from tests.documents.samples import healthy

MS = 1_000_000
GOLDEN = Path(__file__).parent.parent / "golden"


def layer(name, **fields):
    known = {
        "num_experts": 8,
        "top_k": 2,
        "num_steps": 5,
        "tokens_per_step": 2048.0,
        "max_over_mean": 2.5,
        "cv": 0.5,
        "entropy": 0.9,
        "dead_ratio": 0.0,
        "dropped_ratio": 0.0,
        "busiest_expert": 3,
        "busiest_share_ratio": 0.31,
        "min_over_mean": 0.25,
    }
    return MoeLayer(layer=name, **{**known, **fields})


def placement(name, **fields):
    known = {
        "num_ranks": 4,
        "origin": "routing log",
        "num_calls": 5,
        "tokens_per_call": 4096.0,
        "max_over_mean": 1.5,
        "worst_max_over_mean": 1.75,
        "expert_max_over_mean": 2.5,
        "replaced_max_over_mean": 1.25,
    }
    return MoePlacement(layer=name, **{**known, **fields})


def report(**fields):
    return msgspec.structs.replace(healthy(), moe=MoeResult(**fields))


def cells(table):
    assert table is not None
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_without_experts_there_is_no_table():
    for make in (moe_table, placement_table, expert_ranks_table, exchanges_table, pairs_table):
        assert make(healthy(), show_all=True) is None


def test_layers_show_time_and_drift_only_where_there_is_any():
    (row,) = cells(moe_table(report(layers=(layer("0"),)), show_all=True))
    assert row["load"] == "2.50 ×"
    assert row["least"] == "0.25 ×"
    assert "lost" not in row
    assert "drift" not in row
    drift = MoeDrift(
        layer="0",
        first_step=0,
        last_step=9,
        distance=0.125,
        chance_distance=0.01,
        first_max_over_mean=2.0,
        last_max_over_mean=3.0,
    )
    timed = layer("0", lost_ns_per_step=3 * MS)
    (row,) = cells(moe_table(report(layers=(timed,), drift=(drift,)), show_all=True))
    assert (row["lost"], row["drift"]) == ("3.00 ms", "12.5 %")


def test_the_most_uneven_layers_come_first_and_the_rest_is_counted():
    layers = tuple(layer(str(i), max_over_mean=1.0 + i) for i in range(10))
    table = moe_table(report(layers=layers), show_all=False)
    assert [row["layer"] for row in cells(table)] == ["9", "8", "7", "6", "5", "4", "3", "2"]
    assert table is not None
    assert table.notes == ("and 2 more layers",)
    assert len(cells(moe_table(report(layers=layers), show_all=True))) == 10


def test_counts_name_their_data_and_show_one_number_of_ranks():
    rows = tuple(placement("7", part="code", num_ranks=n) for n in (2, 4, 8, 16))
    (row,) = cells(placement_table(report(placement=rows), show_all=False))
    assert (row["data"], row["ranks"], row["load"], row["replaced"]) == (
        "code", "8", "1.50 ×", "1.25 ×"
    )  # fmt: skip
    assert len(cells(placement_table(report(placement=rows), show_all=True))) == 4


def test_what_is_not_known_is_a_dash_and_never_zero():
    plain = placement("0", expert_max_over_mean=None, replaced_max_over_mean=None)
    timed = placement("1", expert_ns_per_step=8 * MS, lost_ns_per_step=2 * MS)
    first, second = cells(placement_table(report(placement=(plain, timed)), show_all=True))
    assert (first["layer"], first["lost"], first["if replaced"]) == ("1", "2.00 ms", "–")
    assert (second["expert time"], second["replaced"]) == ("–", "–")


def test_ranks_and_exchanges():
    rank = MoeRank(
        rank=1,
        group=(0, 1),
        tokens_per_step=1234.5,
        load_ratio=1.5,
        expert_ns_per_step=5 * MS,
        sent_bytes_per_step=2_000_000,
    )
    (row,) = cells(expert_ranks_table(report(ranks=(rank,)), show_all=True))
    assert row == {
        "rank": "1",
        "tokens": "1,234",
        "load": "1.50 ×",
        "expert time": "5.00 ms",
        "waits": "–",
        "sent": "2.00 MB",
        "received": "–",
    }
    exchange = MoeExchange(
        ranks=(0, 1),
        num_per_step=8.0,
        num_sections_per_step=4.0,
        unit="tokens",
        amount_per_step=1_000,
        sent_max_over_mean=1.0,
        received_max_over_mean=1.5,
        busiest_sender=0,
        busiest_receiver=1,
    )
    table = exchanges_table(report(exchanges=(exchange,)), show_all=True)
    assert table is not None
    assert table.rows == (
        ("0-1", "8", "1,000 tokens", "1.00 ×", "0", "1.50 ×", "1", "–"),
    )  # fmt: skip


def pairs(size):
    return tuple(
        MoePair(sender=s, receiver=r, amount_per_step=4, dispatched_per_step=1 + (r == 2))
        for s in range(size)
        for r in range(size)
    )


def test_a_matrix_of_few_ranks_is_relative_to_the_mean_of_different_ranks():
    rows = cells(pairs_table(report(pairs=pairs(3)), show_all=False))
    assert rows[0] == {"from, to": "0", "0": "75 ·", "1": "75", "2": "150"}


@pytest.mark.parametrize(("size", "show_all", "is_shown"), [
    (2, True, False), (8, False, True), (9, False, False), (16, True, True), (17, True, False),
])  # fmt: skip
def test_larger_matrices_are_left_to_the_summary(size, show_all, is_shown):
    table = pairs_table(report(pairs=pairs(size)), show_all=show_all)
    assert (table is not None) is is_shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal_and_names_cannot_harm_it(width):
    nasty = "\x1b[31mred[/red]\x07" + "long" * 30
    filled = report(
        layers=(layer(nasty, lost_ns_per_step=MS), layer("1", part=nasty)),
        placement=(placement(nasty, lost_ns_per_step=MS, expert_ns_per_step=MS),),
        pairs=pairs(8),
        unavailable=(nasty,),
    )
    text = REPORT.reporter("text")(filled, RenderOptions(width=width, show_all=True))
    assert "\x1b[31m" not in text
    assert "\x07" not in text
    assert "Ranks that share experts" in text
    assert max(map(len, text.splitlines())) <= width


def test_counts_alone_are_judged_by_where_a_placement_helps_most():
    report = distprof.analyze(GOLDEN / "moe" / "olmoe-1b-7b" / "expert_counts_top8.json")
    verdict = judge(report)
    assert report.findings[0].code == "MOE104"
    assert verdict.headline == report.findings[0].headline
    assert "2.14 times the mean" in verdict.headline
    assert "the busiest of 8 ranks would get 1.01 times" in verdict.detail
    assert origin(report) == "64 experts · 3 layers · 6 parts of the data · no timings"


def test_at_most_is_the_largest_load_of_the_table():
    """The placement that gains most is not the one with the most load."""
    rows = (
        placement("3", max_over_mean=1.14, replaced_max_over_mean=1.01),
        placement("5", max_over_mean=1.16, replaced_max_over_mean=1.15),
    )
    assert "at most 1.16 times the mean, in layer 5" in ranks_line(rows)


def test_a_placement_that_is_no_better_is_said_to_be_none():
    row = placement("3", max_over_mean=1.14, replaced_max_over_mean=1.15)
    (shown,) = cells(placement_table(report(placement=(row,)), show_all=True))
    assert shown["replaced"] == "no better"
