"""Groups without a description are called by their ranks, those of one layout together."""

from __future__ import annotations

import pytest

from distprof.run.topology import GroupNames, ProcessGroup, axis_of


def group(name: str, *ranks: int, description: str = "undefined", world: int = 8) -> ProcessGroup:
    return ProcessGroup(
        name=name,
        description=description,
        ranks=ranks,
        size=len(ranks),
        backend="gloo",
        axis=axis_of(description, ranks, len(ranks), world),
    )


TENSOR = [group(str(n), 2 * n, 2 * n + 1) for n in range(4)]
DATA = [group("5", 0, 2), group("6", 1, 3)]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (TENSOR[:1], "ranks 0-1"),
        (TENSOR[:2], "ranks 0-1 and 2-3"),
        (TENSOR, "ranks 0-1, 2-3 and 2 more"),
    ],
)
def test_alike_groups_have_one_name(groups: list[ProcessGroup], said: str) -> None:
    names = GroupNames(groups)
    assert {names.of(one.name, "") for one in groups} == {said}


def test_groups_of_another_layout_have_another_name() -> None:
    names = GroupNames([*TENSOR[:2], *DATA])
    assert names.of("0", "0-1") == "ranks 0-1 and 2-3"
    assert names.of("6", "") == names.of("5", "0,2") == "ranks 0,2 and 1,3"


def test_what_has_a_name_of_its_own_keeps_it() -> None:
    named = [group("1", 0, 1, description="mesh_tp"), group("2", *range(8)), group("3")]
    names = GroupNames(named)
    assert [names.of(one.name, "") for one in named] == ["", "", ""]


def test_one_name_for_groups_of_unlike_layouts_needs_the_members() -> None:
    """Ranks that create different groups at the same time give them one number."""
    names = GroupNames([group("1", 0, 1), group("1", 2, 4)])
    assert names.of("1", "") == ""
    assert names.of("1", "2,4") == "ranks 2,4"
    assert names.of("", "") == ""
