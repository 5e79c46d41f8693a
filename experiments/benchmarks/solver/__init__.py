"""Benchmarks of the solver: its speed, and its answers against those of outside solvers."""
