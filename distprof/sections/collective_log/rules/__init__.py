"""Rules on records of collectives over hours or days."""
