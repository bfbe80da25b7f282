"""Where each step of a distributed PyTorch job goes, who caused it, what a fix is worth."""

__version__ = "0.1.0.dev0"
