"""What is sampled at which temperature."""
