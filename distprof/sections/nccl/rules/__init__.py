"""Rules on nccl."""
