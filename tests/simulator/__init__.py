"""A training job simulated from its rules, so that the truth behind its traces is known.

It shares no arithmetic with distprof: plain Python loops over a few operations. Example::

    recording = SimulatedJob(faults=(SlowDevice(rank=1, factor=1.5),)).run()
    ranks = recording.to_ranks()          # list[distprof.run.run.Rank], tables in memory
    recording.write_kineto(folder)        # one .pt.trace.json.gz per rank
    recording.lost_ns(step=11)            # {1: ...}: who cost the others how much
"""

from tests.simulator.job import (
    Collective,
    Compute,
    Exchange,
    GarbageCollection,
    Input,
    LargerInputs,
    LateHost,
    LateInput,
    Marked,
    MoreWork,
    SimulatedJob,
    SlowDevice,
    SlowLaunches,
    SlowLink,
    Wait,
    rotating,
)
from tests.simulator.recording import Instance, RankLog, Recording

__all__ = [
    "Collective",
    "Compute",
    "Exchange",
    "GarbageCollection",
    "Input",
    "Instance",
    "LargerInputs",
    "LateHost",
    "LateInput",
    "Marked",
    "MoreWork",
    "RankLog",
    "Recording",
    "SimulatedJob",
    "SlowDevice",
    "SlowLaunches",
    "SlowLink",
    "Wait",
    "rotating",
]
