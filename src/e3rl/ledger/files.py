"""The names of a run folder's files."""

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
PROMPTS, VALIDATION, SUMMARY = "prompts.jsonl", "validation.jsonl", "summary.json"
