"""How training programs print their iterations: one grammar for each way."""
