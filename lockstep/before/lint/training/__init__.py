"""What is found in a Python training script."""
