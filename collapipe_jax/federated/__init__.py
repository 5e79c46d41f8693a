"""Federated learning: local steps, erasures, aggregation."""
