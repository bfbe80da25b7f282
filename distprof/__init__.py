"""Find out where each step of a distributed PyTorch job goes, why, and what a fix would gain.

::

    import distprof

    run = distprof.open_run("traces/")
    report = distprof.analyze(run)
    report.breakdown.to_pandas()

Names are imported on first use, so that ``import distprof`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from distprof.version import __version__

if TYPE_CHECKING:
    from distprof.api import analyze, open_run
    from distprof.config import Config
    from distprof.documents.saved import Report, load_report
    from distprof.errors import DistprofError, InputError, UsageError
    from distprof.rules.base import Finding
    from distprof.run.run import Run
    from distprof.verbs.functions import check, compare, hang, plan

__all__ = [
    "Config",
    "DistprofError",
    "Finding",
    "InputError",
    "Report",
    "Run",
    "UsageError",
    "__version__",
    "analyze",
    "check",
    "compare",
    "hang",
    "load_report",
    "open_run",
    "plan",
]

_MODULES = {
    "Config": "distprof.config",
    "DistprofError": "distprof.errors",
    "InputError": "distprof.errors",
    "UsageError": "distprof.errors",
    "Finding": "distprof.rules.base",
    "Report": "distprof.documents.saved",
    "Run": "distprof.run.run",
    "analyze": "distprof.api",
    "load_report": "distprof.documents.saved",
    "open_run": "distprof.api",
    "check": "distprof.verbs.functions",
    "compare": "distprof.verbs.functions",
    "hang": "distprof.verbs.functions",
    "plan": "distprof.verbs.functions",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
