"""Measurements; each compares things within one run, so that only ratios are read off."""
