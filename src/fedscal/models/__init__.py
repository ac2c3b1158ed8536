"""Networks, source pre-training, and models on disk."""
