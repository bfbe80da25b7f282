"""All documents: the report, and those of verbs."""

from __future__ import annotations

from typing import Any

from distprof.documents.document import Document
from distprof.documents.saved import REPORT
from distprof.verbs.compare.show import COMPARISON
from distprof.verbs.fabric import FABRIC
from distprof.verbs.gate.baseline import BASELINE
from distprof.verbs.gate.show import CHECK
from distprof.verbs.hang.show import HANG
from distprof.verbs.history.show import HISTORY
from distprof.verbs.op.show import OPERATOR
from distprof.verbs.plan.lint import LINT
from distprof.verbs.plan.show import PLAN
from distprof.verbs.sweep.running import SWEEP
from distprof.verbs.sweep.runs import SUMMARY
from distprof.verbs.sweep.show import SCALING
from distprof.verbs.watch.show import ALERT, WATCH

ALL_DOCUMENTS: tuple[Document[Any], ...] = (
    ALERT,
    BASELINE,
    CHECK,
    COMPARISON,
    FABRIC,
    HANG,
    HISTORY,
    LINT,
    OPERATOR,
    PLAN,
    REPORT,
    SCALING,
    SUMMARY,
    SWEEP,
    WATCH,
)
"""Every document, by schema id."""
