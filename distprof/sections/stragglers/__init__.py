"""Which ranks the others wait for, how steadily, and why."""
