"""Network: who, where, and over which channel."""
