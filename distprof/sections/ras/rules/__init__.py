"""Rules on the status of a running job according to NCCL."""
