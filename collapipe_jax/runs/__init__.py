"""Runs of both together: configuration, training, studies, results, figures."""
