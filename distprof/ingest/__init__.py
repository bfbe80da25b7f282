"""Readers: artefacts on disk to tables. Upstream spellings stop here."""
