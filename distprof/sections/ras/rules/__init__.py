"""Rules on what NCCL says of a running job."""
