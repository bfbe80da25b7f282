"""From a path to the verdict line: few rooms on the main line, and no call goes up the layers.

The calls of one ``distprof analyze`` are recorded. The main line is what the command and
``distprof.api`` call themselves (ARCHITECTURE.md, "From a path to the verdict line"). A climb is a
call from a lower layer into a higher one: the reader would have to go back to where they came from.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import distprof
from distprof.cli import main

ROOT = Path(distprof.__file__).parent
REPOSITORY = Path(__file__).parents[2]
TRACES = REPOSITORY / "tests" / "golden" / "kineto" / "gloo-ddp-2ranks"
MOST_ROOMS = 17

Call = tuple[str, str]
"""Caller and callee as modules below ``distprof``: ``ingest.open``."""


def layers() -> dict[str, int]:
    """Package or module of the contract to the number of its layer, the highest first."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    (contract,) = (
        found
        for found in settings["tool"]["importlinter"]["contracts"]
        if found["name"] == "One direction of data"
    )
    return {
        name.strip().removeprefix("distprof."): number
        for number, names in enumerate(contract["layers"])
        for name in names.split("|")
    }


LAYERS = layers()


def layer(module: str) -> int | None:
    return LAYERS.get(module.partition(".")[0])


def room(module: str) -> str:
    """A folder; of sections and of what is read, the folder of the subject."""
    parts = module.split(".")[:-1]
    return "/".join(parts[:2]) if parts else module


@contextmanager
def recorded(calls: set[Call]) -> Iterator[None]:
    """Collect the calls between modules of distprof; what is between them is skipped."""

    def see(frame: FrameType, event: str, _: object) -> None:
        callee = module_of(frame) if event == "call" else None
        if callee is None:
            return
        above = frame.f_back
        while above is not None and module_of(above) is None:
            above = above.f_back
        if above is not None:
            calls.add((str(module_of(above)), callee))

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


def module_of(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__", "")
    return name.removeprefix("distprof.") if name.startswith("distprof.") else None


@pytest.fixture(scope="module")
def calls() -> set[Call]:
    found: set[Call] = set()
    for wanted in (set(), found):  # imports, which run in the first, are no calls
        with recorded(wanted):
            assert main(["analyze", str(TRACES), "--no-cache", "-o", "-"]) in (0, 1)
    return found


def test_the_main_line_goes_through_few_rooms(calls: set[Call]) -> None:
    line = {room(callee) for caller, callee in calls if caller.startswith(("cli.", "api"))}
    assert {"cli", "api", "sections", "rules", "documents"} <= line
    assert len(line) <= MOST_ROOMS, sorted(line)


HANDED_DOWN = {
    ("rules", "sections"): "rules and results, found by type, and the planner of repairs",
    ("ingest", "sections"): "what the executor maps over ranks",
    ("sections", "api"): "the mapper, for which a rank's failure affects no other rank",
    ("ingest", "cli"): "what is told of the bytes that were read",
}
"""Calls into a higher layer, of what that layer has handed down or registered."""


def test_no_call_goes_up_the_layers_but_to_what_was_handed_down(calls: set[Call]) -> None:
    assert len(calls) > 300
    climbs = set()
    for caller, callee in calls:
        here, there = layer(caller), layer(callee)
        assert here is not None, caller
        assert there is not None, callee
        if there < here:
            climbs.add((caller.partition(".")[0], callee.partition(".")[0]))
    assert climbs == HANDED_DOWN.keys()
