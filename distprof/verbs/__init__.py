"""Commands other than the analysis of one recording, one folder each."""
