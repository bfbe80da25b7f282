"""One module per kind of source, each with its ``SOURCE``; see :mod:`distprof.ingest.source`."""
