"""Plots as image files. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from distprof.errors import InputError, MissingExtraError, UsageError

FORMATS = (".svg", ".png", ".pdf")


def check_plot(file: str) -> None:
    """Reject a plot that cannot be drawn, before the work is done.

    Raises:
        UsageError: If the file extension is not a plot format.
        MissingExtraError: If matplotlib is not installed.
    """
    if Path(file).suffix.lower() not in FORMATS:
        raise UsageError(f"{file}: the name of a plot must end in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("a plot", "plot")


def new_figure(file: str, *, panels: int) -> tuple[Any, list[Any]]:
    """A figure with panels side by side.

    Raises:
        UsageError: If the file extension is not a plot format.
        MissingExtraError: If matplotlib is not installed.
    """
    check_plot(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * panels, 4.8), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(visible=True, axis="y", color="#e5e8e8", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, list(axes)


def save_figure(figure: Any, file: str) -> None:
    """Write the figure to a file.

    Raises:
        InputError: If the file cannot be written.
    """
    try:
        figure.savefig(file, dpi=150, metadata=_metadata(file))
    except OSError as error:
        raise InputError(
            file,
            expected="a location where a plot can be written",
            found=error.strerror or str(error),
            fix="choose another file with --plot",
        ) from error


def _metadata(file: str) -> dict[str, Any]:
    """Metadata without a date, so that the same sweep gives the same file."""
    return {"Date": None} if file.lower().endswith(".svg") else {}
