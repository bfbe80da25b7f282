"""Sensors and errors of GPUs, as other tools log them."""
