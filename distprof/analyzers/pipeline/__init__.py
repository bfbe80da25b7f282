"""Pipelines: slots of stages, the bubble and its parts, what other configurations would take."""
