"""The append-only record of a run and its mirrors."""
