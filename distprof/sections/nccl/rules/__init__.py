"""Rules about NCCL."""
