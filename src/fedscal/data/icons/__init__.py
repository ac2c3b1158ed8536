"""Icons: four drawn domains of the same 25 objects, and of 25 others, made from packages of the npm registry.

``rules`` names the packages and decides class and style by an icon's name, ``npm`` fetches them,
``draw`` makes pixels, ``archive`` drops near-duplicates and writes the result, ``benchmark`` reads it.
"""
