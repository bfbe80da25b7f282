"""Starts the ranks of this host with the user's launch options and watches them to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distprof_probes.job.interrupts import Interrupts
from distprof_probes.job.supervise import Supervisor

from distprof.errors import DistprofError
from distprof_runs.settings import LaunchOptions


def run_ranks(
    program: Sequence[str],
    *,
    run_dir: Path,
    environment: Mapping[str, str],
    launch: LaunchOptions,
    supervisor: Supervisor,
    interrupts: Interrupts,
    on_look: Callable[[], None] = lambda: None,
) -> str:
    """Run ``program`` once per rank until all have ended; imports torch.

    Returns why the launcher failed, else an empty text. The supervisor knows how the ranks ended.
    """
    from distprof_runs.launching.launch import start_ranks
    from distprof_runs.launching.meeting import Meeting

    try:
        start_ranks(
            list(program),
            run_dir=run_dir,
            environment=environment,
            num_ranks=launch.ranks_per_node,
            meeting=Meeting(
                nodes=launch.nodes,
                node_rank=launch.this_node or 0,
                endpoint=launch.rdzv_endpoint,
            ),
            supervisor=supervisor,
            interrupts=interrupts,
            on_look=on_look,
        )
    except KeyboardInterrupt:
        return ""
    except DistprofError:
        raise
    except Exception as error:  # torch's rendezvous raises many kinds of errors
        supervisor.kill()
        return f"the ranks could not be started ({type(error).__name__}: {error})"
    return ""
