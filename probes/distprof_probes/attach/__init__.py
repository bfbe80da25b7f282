"""Records programs that were not written for distprof.

``distprof capture`` puts :mod:`distprof_probes.attach.inject` on ``PYTHONPATH``: each Python of the
program loads the hook at its start, waits for torch, and opens a session of probes when an
optimizer is built (:mod:`distprof_probes.attach.hook`). ``distprof attach`` queries a running rank
through the socket that :mod:`distprof_probes.attach.server` opens in it.
"""
