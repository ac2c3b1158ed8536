"""Server rules, one module each."""
