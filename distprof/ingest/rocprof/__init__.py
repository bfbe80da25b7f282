"""Traces of rocprofv3 as JSON, read as those of torch.profiler."""
