"""Flight Recorder dumps as JSON or pickle."""
