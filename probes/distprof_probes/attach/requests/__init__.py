"""Requests to the ranks of all nodes, through the run directory that they share.

Nothing listens on the network. ``distprof attach --all-nodes`` writes a file
(:mod:`~distprof_probes.attach.requests.asking`), one rank of each node looks for it
(:mod:`~distprof_probes.attach.requests.poller`), checks who wrote it
(:mod:`~distprof_probes.attach.requests.inbox`), queries the ranks of its node through their
sockets, and writes their answers (:mod:`~distprof_probes.attach.requests.serving`).
"""
