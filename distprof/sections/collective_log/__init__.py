"""What ranks recorded of their collectives over hours or days."""
