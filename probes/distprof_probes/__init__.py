"""Probes that run inside a training process and write artefacts for ``distprof`` to read.

::

    import distprof_probes

    with distprof_probes.session("runs/mine") as session:
        for batch in loader:
            with session.phase("forward"):
                loss = model(batch)
            ...
            session.step(loss=loss, tokens=batch.numel())

Then ``distprof analyze runs/mine``. Importing this package does not import torch. Without
torch, a session writes a step log only.
"""

from __future__ import annotations

from distprof_probes.options import ProbeOptions
from distprof_probes.session import Session, current, session

__all__ = ["ProbeOptions", "Session", "current", "session"]
