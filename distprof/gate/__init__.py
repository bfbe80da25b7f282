"""Whether a change made a job slower: decisions by repeats, and the baselines they are made by."""
