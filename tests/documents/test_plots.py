"""Plots of a sweep: what is on them, and what cannot be drawn."""

import re

import pytest

from distprof.documents.plots import check_plot
from distprof.errors import InputError, MissingExtraError, UsageError
from distprof.verbs.sweep import plots
from distprof.verbs.sweep.measure import analyze_scaling
from distprof.verbs.sweep.plots import draw_scaling
from tests.verbs.sweep.sweeps import parts, runs

pytest.importorskip("matplotlib", reason="plots take the extra plot")

ALONE = parts(computation=100)
FOUR = parts(computation=95, exposed_transfer=30)
SWEEP = analyze_scaling([*runs(1, 100, ALONE), *runs(2, 110, FOUR), *runs(4, 125, FOUR)])


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The figure that would be written."""
    kept = []
    save = plots.save_figure
    monkeypatch.setattr(
        plots, "save_figure", lambda figure, file: (kept.append(figure), save(figure, file))
    )

    def draw(scaling):
        draw_scaling(scaling, str(tmp_path / "plot.svg"))
        return kept[-1]

    return draw


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.PDF", b"%PDF")]
)
def test_each_format_is_what_its_name_says(tmp_path, name, start):
    draw_scaling(SWEEP, str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_has_no_date_in_it(tmp_path):
    draw_scaling(SWEEP, str(tmp_path / "a.svg"))
    assert not re.search(r"<dc:date>", (tmp_path / "a.svg").read_text())


def test_points_are_the_efficiencies_with_every_run_beside_them(drawn):
    efficiency, losses = drawn(SWEEP).axes
    (points,) = efficiency.containers
    assert points.lines[0].get_ydata().tolist() == [size.efficiency for size in SWEEP.sizes]
    dots = next(line for line in efficiency.lines if line.get_label() == "single runs")
    assert len(dots.get_xdata()) == 9
    assert [tick.get_text() for tick in efficiency.get_xticklabels()] == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
    ]
    assert losses.get_title(loc="left") == "Losses by cause"


def test_stacked_causes_add_up_to_what_is_lost(drawn):
    losses = drawn(SWEEP).axes[1]
    total = [0.0, 0.0]
    for stack in losses.containers:
        for place, bar in enumerate(stack.patches):
            total[place] += bar.get_height()
    assert total == pytest.approx([1 - size.efficiency for size in SWEEP.sizes[1:]], abs=0.004)


def test_the_line_of_a_law_is_dashed_where_nothing_was_measured(drawn):
    efficiency = drawn(SWEEP).axes[0]
    dashed = [line for line in efficiency.lines if line.get_linestyle() == "--"]
    beyond = [line for line in dashed if max(line.get_xdata()) == 32]
    assert len(beyond) == 1  # the other law does not follow this sweep
    assert all(min(line.get_xdata()) == 4 for line in beyond)


def test_without_traces_there_is_one_panel(drawn):
    assert len(drawn(analyze_scaling([*runs(1, 100), *runs(2, 110)])).axes) == 1


def test_no_sweep_is_not_drawn(tmp_path):
    with pytest.raises(InputError, match="two sizes"):
        draw_scaling(analyze_scaling(runs(1, 100)), str(tmp_path / "a.svg"))


def test_other_endings_and_places_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.svg, \.png, \.pdf"):
        check_plot("a.jpg")
    with pytest.raises(InputError, match="can be written"):
        draw_scaling(SWEEP, str(tmp_path / "missing" / "a.svg"))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="plot"):
        check_plot("a.svg")
