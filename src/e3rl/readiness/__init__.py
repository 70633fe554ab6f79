"""Whether a run is worth starting."""
