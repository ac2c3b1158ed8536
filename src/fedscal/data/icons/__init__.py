"""Icons: four drawn domains of the same 25 objects, made from packages of the npm registry.

``lock`` names the packages, ``download`` fetches them, ``rules`` decides class and style by an icon's
name, ``draw`` makes pixels, ``duplicates`` drops what is there twice, ``archive`` keeps the result and
``rows`` are the benchmarks.
"""
