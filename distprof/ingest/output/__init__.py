"""Reader of what jobs print: one table of expressions, one pass over the bytes."""
