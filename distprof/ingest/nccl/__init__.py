"""NCCL's and RCCL's debug logs: lines, what they say, and what follows from them together."""
