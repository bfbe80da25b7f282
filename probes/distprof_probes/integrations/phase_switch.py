"""Phases for frameworks with callbacks: each phase ends where the next starts."""

from __future__ import annotations

from contextlib import AbstractContextManager

from distprof_probes.session import Session


class PhaseSwitch:
    """At most one open phase of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: AbstractContextManager[None] | None = None

    def to(self, name: str | None) -> None:
        """End the open phase, if any, and start ``name``, unless it is None."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if name is not None:
            self._open = self._session.phase(name)
            self._open.__enter__()
