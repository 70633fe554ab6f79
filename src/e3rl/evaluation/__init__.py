"""Models sampled on problem sets."""
