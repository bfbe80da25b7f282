"""Readers of NCCL's logs: lines, messages, and the communicators that they describe."""
