"""Kineto traces: the JSON that torch.profiler writes."""
