"""One step of all ranks on one clock, small enough to draw and to send."""
