"""Mathematics of tensors."""
