"""Shares and powers of a partition: a convex problem, solved and certified."""
