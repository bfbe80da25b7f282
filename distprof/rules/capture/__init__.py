"""CAP: the recording itself limits what can be said."""
