"""NCCL's logs: communicators, transports, settings, warnings."""
