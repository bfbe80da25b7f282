"""The regression gate of ``distprof check``."""
