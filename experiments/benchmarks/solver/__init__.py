"""The solver against outside solvers, exhaustive search and the clock."""
