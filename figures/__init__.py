"""Figures of the studies in `experiments/`; those of runs are in `collapipe_jax/runs/figures/`."""
