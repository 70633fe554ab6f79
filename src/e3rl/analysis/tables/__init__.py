"""Numbers as tables."""
