"""Judgement: thresholds, costs and fixes. Each rule is one file, discovered by folder."""
