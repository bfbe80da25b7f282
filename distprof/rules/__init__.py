"""Judgement: thresholds, cost and fix. One file per rule; found by walking the folders below."""
