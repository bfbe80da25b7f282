"""From a command line to ranks that train: nodes, processes, process groups."""
