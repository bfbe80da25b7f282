"""COM: what communication costs and why it is not hidden."""
