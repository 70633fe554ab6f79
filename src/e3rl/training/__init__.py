"""The update, its passes and what is measured before it."""
