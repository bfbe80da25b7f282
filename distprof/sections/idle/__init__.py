"""Why a GPU is idle: late launches, input, synchronising calls, pauses."""
