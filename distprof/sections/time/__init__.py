"""Where each step's time goes: breakdown and waterfall."""
