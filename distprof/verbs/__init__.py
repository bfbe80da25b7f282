"""What commands do besides analysing one recording, one folder each."""
