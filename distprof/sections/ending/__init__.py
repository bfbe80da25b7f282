"""How a job ended or why it stands, according to what it printed."""
