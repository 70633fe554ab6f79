"""vLLM's own servers as engines: what is said to them, and how weights get there."""
