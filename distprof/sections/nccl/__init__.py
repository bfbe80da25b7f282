"""What NCCL's own log says: communicators, transports, settings, warnings."""
