"""Parts of a launcher: the run directory, supervision, the first failure, the end of the job.

Does not import torch, so that a launcher's command line starts quickly. ``distprof run`` and
``distprof capture`` both use these parts.
"""
