"""Configuration: keys, checks, and the structs that they become."""
