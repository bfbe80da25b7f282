"""Sessions for frameworks that own the training loop. Each module needs its framework."""
