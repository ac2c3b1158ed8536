"""Where images come from: benchmarks and their domains, the cut into clients, and the views of an image.

``registry`` names the benchmarks and ``cache`` loads their images. ``labels`` is separate: clients
have none, so nothing that trains a client may import it.
"""
