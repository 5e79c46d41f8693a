"""Cost: what a decision costs in time, energy, memory and convergence."""
