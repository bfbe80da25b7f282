"""Series of runs: planned, made one after another in processes of their own, taken up again."""
