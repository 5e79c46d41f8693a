"""Benchmarks of the solver: its speed, and its answers against those of outside solvers."""

import os

# Small matrices: two threads would cost SciPy more than they bring.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
