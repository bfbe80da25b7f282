"""``distprof bench``: how fast collectives are on a real process group, over sizes."""
