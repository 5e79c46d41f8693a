"""Policies: who decides a round, and the exhaustive reference."""
