"""What a process is told before it starts, and what it asks of the other ranks."""
