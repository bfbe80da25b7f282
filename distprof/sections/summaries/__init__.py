"""Other tools' per-rank summaries: collectives and input readiness."""
