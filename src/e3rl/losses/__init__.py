"""The objective of an update."""
