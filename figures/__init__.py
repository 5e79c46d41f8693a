"""Figures, drawn from saved checkpoints alone."""
