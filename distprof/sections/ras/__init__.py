"""What NCCL says of a running job: ranks that do not answer, errors, unequal launches."""
