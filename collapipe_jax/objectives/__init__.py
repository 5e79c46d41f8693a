"""Objectives: a model, the data that it learns from, and the score that judges it."""
