"""Figures of training runs, races, comparisons and sweeps, drawn from the files they leave."""
