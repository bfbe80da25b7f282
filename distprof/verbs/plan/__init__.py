"""Which layouts fit a model on a cluster, and what each costs."""
