"""Configurations that the commands know by name."""
