"""One run: from a spec to a finished run directory."""
