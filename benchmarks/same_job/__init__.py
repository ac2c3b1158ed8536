"""One round of small clients, here and in other frameworks: ``benchmarks/peers.py`` compares them."""
