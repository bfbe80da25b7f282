"""Sessions for frameworks that own the training loop. Each module requires its framework."""
