"""``distprof bench``: measures the speed of collectives on a real process group by size."""
