"""One module for each kind of input besides traces and run directories."""
