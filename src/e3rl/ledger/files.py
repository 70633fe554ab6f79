"""The names of a run folder's files."""

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
ENVIRONMENT = "environment.json"
PROMPTS, VALIDATION, SUMMARY = "prompts.jsonl", "validation.jsonl", "summary.json"
