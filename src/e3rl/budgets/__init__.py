"""Who gets how many rollouts."""
