"""The compiled kernel, if it is installed and not switched off, and the CPUs of this process.

``distprof._kernel`` (C++, in ``native/``) runs a few hot loops faster than Python. It is optional:
an installation without a compiler lacks it, and ``DISTPROF_KERNEL=off`` switches it off. The
results are identical to the byte either way.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

KERNEL_ENVIRONMENT = "DISTPROF_KERNEL"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_OFF = ("off", "0", "no", "false")
_SLOWER = "traces are read in Python, which takes twice as long"
_compiled: ModuleType | None = None
_problem = ""
try:
    _compiled = import_module("distprof._kernel")
except ModuleNotFoundError:
    _problem = "not compiled when distprof was installed"
except ImportError as error:  # a C++ library that is missing or too old
    _problem = f"cannot be loaded ({error})"


def _is_switched_off() -> bool:
    return os.environ.get(KERNEL_ENVIRONMENT, "").strip().lower() in _OFF


def kernel() -> ModuleType | None:
    """The kernel; None if Python code replaces it."""
    return None if _compiled is None or _is_switched_off() else _compiled


_has_spare_cpus = True


def threads_help() -> bool:
    """Whether helper threads make reading faster: not with Python's parser, nor in a pool."""
    return _has_spare_cpus and kernel() is not None


def share_cpus() -> None:
    """From now on, every CPU has a process of its own."""
    global _has_spare_cpus
    _has_spare_cpus = False


def explain() -> tuple[bool, str]:
    """Whether the kernel is used, and an explanation for the user."""
    if _compiled is None:
        return False, f"{_problem}: {_SLOWER}"
    if _is_switched_off():
        return False, f"switched off by {KERNEL_ENVIRONMENT}: {_SLOWER}"
    return True, "used to read traces and to simulate"


def available_processors() -> int | None:
    """Number of CPUs that this process and its children may use; None if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def import_numpy() -> None:
    """Import numpy without its linear algebra threads, which distprof does not use.

    OpenBLAS would start one thread per processor, and each spins for up to 0.1 s before it sleeps.
    Call this only in distprof's own processes: in a user's process, numpy is theirs to configure.
    The variable is set only during the import, so no program started later inherits it.
    """
    if "numpy" in sys.modules or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy as np  # noqa: F401 - imported for its side effects
    finally:
        del os.environ[_BLAS_THREADS]
