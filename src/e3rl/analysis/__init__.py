"""Recorded runs read, measured and shown: no torch, so that notebooks open fast."""
