"""What crosses ranks and reads no file: matching, clocks, windows."""
