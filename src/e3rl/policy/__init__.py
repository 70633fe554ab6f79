"""Tokenizer and causal language model."""
