"""FLOP, memory and MFU relative to the hardware's limits."""
