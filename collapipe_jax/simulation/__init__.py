"""Simulation: a network over rounds, and many networks at once."""
