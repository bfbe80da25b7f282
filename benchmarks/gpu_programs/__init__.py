"""Training programs with one fault each, for ``benchmarks/gpu_truth.py``."""
