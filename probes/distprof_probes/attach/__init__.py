"""Getting evidence out of programs that were not written for it.

``distprof capture`` puts :mod:`distprof_probes.attach.inject` on ``PYTHONPATH``: each Python of the
program takes the hook up at its start, waits for torch, and opens a session of probes when an
optimizer is built (:mod:`distprof_probes.attach.hook`). ``distprof attach`` asks a living rank
through the socket that :mod:`distprof_probes.attach.server` opens in it.
"""
