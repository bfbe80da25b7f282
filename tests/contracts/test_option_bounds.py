"""Every whole number of the command line has a largest value: a mistyped one is no endless work."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from distprof_runs.bench.plan import parse_size
from distprof_runs.settings import resolve

from distprof.cli.app import app
from distprof.errors import UsageError
from distprof.units import MOST_RANKS

ABSURD = (2**63 - 1, 2**63, 10**30)
OF_THE_PROGRAM = ("start_step", "num_steps", "light_steps", "warmup", "max_growth_mb")
"""Steps of a program that ends by itself: recording them later, or all of them, is no more work."""
SEEDS = ("seed",)
"""Any number of 64 bits is as good as another."""


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {path}", found) for path, found in commands(command, below))
        else:
            yield name, command


def numbers() -> list[tuple[str, click.Option]]:
    """Each option that takes a whole number, with its command."""
    return [
        (path, each)
        for path, command in commands(app, click.Context(app))
        for each in command.params
        if isinstance(each, click.Option) and isinstance(each.type, click.types.IntParamType)
    ]


NUMBERS = numbers()
NAMED = [
    pytest.param(path, each, id=f"{path} {each.opts[0]}")
    for path, each in NUMBERS
    if each.name not in OF_THE_PROGRAM
]


def test_there_are_numbers_of_all_kinds_of_commands():
    paths = {path for path, _ in NUMBERS}
    assert {"analyze", "bench", "plan", "capture", "history show", "run 3d"} <= paths
    assert len(NUMBERS) > 150


@pytest.mark.parametrize(("path", "each"), NAMED)
def test_an_absurd_number_is_refused_with_the_largest_that_is_not(path, each):
    for value in ABSURD:
        if value == ABSURD[0] and each.name in SEEDS:
            continue
        if path.startswith("run "):
            section, name = each.key
            with pytest.raises(UsageError, match=rf"\[{section}\] {name} must be .* (at most|to) "):
                resolve(path.removeprefix("run "), {}, {section: {name: value}})
        else:
            with pytest.raises(click.BadParameter, match=r"not in the range .*<="):
                each.type_cast_value(click.Context(click.Command(path)), str(value))


@pytest.mark.parametrize("name", OF_THE_PROGRAM)
def test_what_has_no_bound_of_its_own_has_64_bits(name):
    with pytest.raises(UsageError, match=rf"\[probes\] {name} must be a number of at most 64 bits"):
        resolve("ddp", {}, {"probes": {name: 10**30}})


def test_a_job_of_a_million_ranks_is_refused_before_a_process_starts():
    with pytest.raises(
        UsageError, match=r"\[launch\] ranks must be a whole number of at most 1,024"
    ):
        resolve("ddp", {}, {"launch": {"ranks": MOST_RANKS}})


@pytest.mark.parametrize("text", ["1025G", "999999999999G", "2000000000000"])
def test_a_size_that_no_gpu_has_is_refused(text):
    with pytest.raises(UsageError, match=r"largest size that bench measures|not a size"):
        parse_size(text)
    assert parse_size("1024G") == 1 << 40
