"""Models: the only place that knows Flax."""
