"""FLOP, memory and MFU against what the hardware can do."""
