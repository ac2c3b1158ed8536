"""The client: one local training loop, its terms."""
