"""Rules about mixtures of experts."""
