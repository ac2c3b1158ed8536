"""The same round in other frameworks, beside ours: ``python -m benchmarks.peers``."""
