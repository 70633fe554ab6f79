"""The slots of the pipeline."""
