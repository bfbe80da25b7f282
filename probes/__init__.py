"""What runs inside a training process and writes artefacts for ``distprof`` to read."""
