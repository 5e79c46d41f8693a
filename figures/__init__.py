"""Figures, drawn from files alone."""
