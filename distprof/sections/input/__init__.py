"""How the input pipeline feeds a rank."""
