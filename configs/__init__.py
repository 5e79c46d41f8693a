"""Configurations: each module has `get_config()`."""
