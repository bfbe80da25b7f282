"""What the profiler did to the job, and the recording without it."""
