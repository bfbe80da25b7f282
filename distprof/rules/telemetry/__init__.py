"""What sensors of devices show: throttling, clocks, errors, heat."""
