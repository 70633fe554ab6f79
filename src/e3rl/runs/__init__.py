"""Whole runs and sweeps of them."""
