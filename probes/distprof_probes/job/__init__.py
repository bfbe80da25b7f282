"""What surrounds the ranks of a job: its directory, who watches them, who failed first, the end.

Free of torch, so that a launcher's command line starts quickly. ``distprof run`` and
``distprof capture`` are both built from these parts.
"""
