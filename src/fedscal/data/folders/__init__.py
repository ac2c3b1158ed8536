"""Folders of images as data sets."""
