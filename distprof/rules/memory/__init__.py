"""MEM: memory and copies."""
