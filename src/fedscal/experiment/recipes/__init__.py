"""Recipes that come with the package: flat TOML files of keys."""
