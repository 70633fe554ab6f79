"""Advantages of rollouts within their groups."""
