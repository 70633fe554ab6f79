"""What speaks against taking a comparison of recorded runs at its face."""
