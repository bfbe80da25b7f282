"""Traces of rocprofv3 as JSON or Perfetto, read like those of torch.profiler."""
