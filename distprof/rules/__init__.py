"""Judgement: thresholds, costs and fixes. Each rule is one file, discovered in its folder."""
