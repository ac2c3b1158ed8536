"""Use an adapted model: load, predict, audit, export."""
