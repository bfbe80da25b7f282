"""GPU sensors: clocks, throttling, power, errors and energy."""
