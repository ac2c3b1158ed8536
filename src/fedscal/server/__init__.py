"""What the server does with replies."""
