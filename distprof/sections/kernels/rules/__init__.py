"""Rules on kernels."""
