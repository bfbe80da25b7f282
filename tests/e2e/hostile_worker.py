"""Makes a rank of ``distprof run`` do a deed in the middle of its training.

The ``sitecustomize`` of a test imports it in the process of that rank.
"""

from __future__ import annotations

import os
from typing import Any

from distprof_runs.workloads import alone

from tests.probes.scripts.hostile import DEEDS, Rank

AT = 4
MEGABYTES = 512

_DEED = os.environ.pop("HOSTILE")  # processes that this one starts are not hostile

_batches_of = alone.batches_of


def _hostile(*args: Any, step: int, **keywords: Any) -> Any:
    if step == AT:
        DEEDS[_DEED](Rank(os.environ["HOSTILE_RESULT"], MEGABYTES))
    return _batches_of(*args, step=step, **keywords)


alone.batches_of = _hostile
