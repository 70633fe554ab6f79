"""Budget rules on tables of pass rates."""
