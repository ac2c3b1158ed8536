"""Icons: four drawn domains of the same 25 objects, made from packages of the npm registry.

``lock`` names the packages, ``npm`` fetches them, ``rules`` decides class and style by an icon's name,
``draw`` makes pixels, ``archive`` drops near-duplicates and writes the result, ``benchmark`` reads it.
"""
