"""The run as a graph of dependencies, simulated as it was and without each cause."""
