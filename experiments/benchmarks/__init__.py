"""Benchmarks: speed side by side with a peer, in one run."""
