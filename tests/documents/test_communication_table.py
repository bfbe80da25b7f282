"""The table of collectives: sizes."""

from __future__ import annotations

import msgspec

from distprof.sections.collectives import CollectivesResult
from distprof.sections.collectives.show import collectives_table
from tests.documents.samples import SAMPLES
from tests.rules.samples import collective_class


def sizes_of(*numbers: int | None) -> list[object]:
    classes = tuple(collective_class(bytes=number, axis="tp") for number in numbers)
    result = CollectivesResult(num_ranks=2, num_steps=3, classes=classes)
    report = msgspec.structs.replace(SAMPLES["straggler"](), collectives=result)
    table = collectives_table(report, show_all=True)
    assert table is not None
    return [row[2] for row in table.rows]


def test_sizes_that_look_alike_are_shown_to_the_byte() -> None:
    assert sizes_of(1_049_600, 1_048_576, 4096) == ["1,049,600 B", "1,048,576 B", "4.10 kB"]


def test_an_unknown_size_stays_unknown() -> None:
    assert sizes_of(None, 4096) == ["–", "4.10 kB"]
