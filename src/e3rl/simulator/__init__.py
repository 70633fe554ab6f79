"""Budget rules on tables of pass rates, without a model (numpy and pandas only)."""
