"""Answers and what they earn."""
