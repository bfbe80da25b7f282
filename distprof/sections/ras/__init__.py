"""A running job according to NCCL: ranks that do not answer, errors, unequal launches."""
