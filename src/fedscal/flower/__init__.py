"""The adapter to Flower: the only package that imports flwr."""
