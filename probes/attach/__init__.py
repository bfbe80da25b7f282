"""Getting evidence out of programs that were not written for it.

``distprof capture`` puts :mod:`probes.attach.inject` on ``PYTHONPATH``: each Python of the program
takes the hook up at its start, waits for torch, and opens a session of probes when an optimizer is
built (:mod:`probes.attach.hook`). ``distprof attach`` asks a living rank through the socket that
:mod:`probes.attach.server` opens in it.
"""
