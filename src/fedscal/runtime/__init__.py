"""Who executes clients."""
