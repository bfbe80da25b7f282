"""PIP: stages of a pipeline that do not fit together."""
