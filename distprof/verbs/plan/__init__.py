"""Layouts of a model on a cluster, and their costs."""
