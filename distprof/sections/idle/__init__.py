"""Why a GPU is idle: host, input, synchronising calls, pauses."""
