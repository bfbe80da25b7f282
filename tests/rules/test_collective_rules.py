"""What rules have in common: names of collectives, and whether there are any."""

from __future__ import annotations

import pytest

from tests.rules.samples import collective_class, collectives


@pytest.mark.parametrize(
    ("axis", "group", "expected"),
    [
        ("dp_shard", "default_pg", "all_reduce in dp_shard (26.2 MB)"),
        ("world", "default_pg", "all_reduce in default_pg (26.2 MB)"),
        (None, "experts", "all_reduce in experts (26.2 MB)"),
        (None, "", "all_reduce (26.2 MB)"),
    ],
)
def test_a_collective_is_called_by_its_axis_where_that_says_more(
    axis: str | None, group: str, expected: str
) -> None:
    assert collective_class(axis=axis, group=group).label == expected


def test_messages_are_no_collectives_to_judge() -> None:
    sent, received = collective_class(kind="send"), collective_class(kind="recv")
    assert collectives(sent, received).has_only_messages
    assert not collectives(sent, received, collective_class()).has_only_messages
