"""Numbers made of recorded runs."""
