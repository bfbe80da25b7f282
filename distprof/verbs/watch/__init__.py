"""Watches a job while it runs: who is late, what is lost, and what to be told about."""
