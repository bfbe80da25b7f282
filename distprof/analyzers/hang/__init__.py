"""Does a job hang, in what, and because of whom."""
