"""Whether the process of a rank runs, as far as this machine can tell."""

from __future__ import annotations

import socket
from pathlib import Path

from distprof.artefacts.run_file import AttachFile


def is_running(process: AttachFile) -> bool | None:
    """Whether a rank's process runs; None if this machine cannot tell.

    The pid alone is not enough, because another process may have it now.
    """
    if process.host != socket.gethostname() or not process.started_ticks:
        return None
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text("utf-8", "replace")
        letter, *fields = text[text.rfind(")") + 2 :].split()
        return letter not in "ZX" and int(fields[18]) == process.started_ticks
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError):
        return None
