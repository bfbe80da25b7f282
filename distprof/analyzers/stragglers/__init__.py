"""Who makes the others wait, how long, in which pattern, and why."""
