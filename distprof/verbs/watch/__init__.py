"""Watches a job while it runs: late ranks, lost ranks, and alerts."""
