"""Closed-form models: scalars and arrays in, numbers out, no I/O."""
