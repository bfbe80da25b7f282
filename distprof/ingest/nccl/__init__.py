"""Nccl."""
