"""Files that survive kills."""
