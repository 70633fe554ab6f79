"""Intervals, pass@k, apportionment."""
