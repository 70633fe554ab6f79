"""Configurations: composed, checked, built."""
