"""Segments and micro-batches: candidates of a cluster, and their joint search."""
