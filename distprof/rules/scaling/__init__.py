"""How efficiently the job uses what it runs on, at one size and over sizes."""
