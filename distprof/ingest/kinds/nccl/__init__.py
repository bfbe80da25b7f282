"""NCCL's log: lines, messages and communicators."""
