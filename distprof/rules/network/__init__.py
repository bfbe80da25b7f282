"""How NCCL connects ranks: transports, network cards, settings."""
