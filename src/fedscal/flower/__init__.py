"""The adapter to Flower: the only place that imports flwr."""
