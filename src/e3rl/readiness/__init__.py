"""Whether a run may start: checks of what a few rollouts showed (no torch)."""
