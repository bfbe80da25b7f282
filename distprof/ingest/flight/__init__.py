"""Flight Recorder dumps, JSON and pickle."""
