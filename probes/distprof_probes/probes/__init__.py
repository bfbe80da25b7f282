"""One module for each probe: what it watches, and how it writes that down."""
