"""MOE: mixtures of experts."""
