"""Segments and micro-batches: candidates of clusters, and of the round.

A problem has one batch axis, ``R``; candidates have theirs, ``C``, before it. Functions take
``fix`` where a policy fixes partitions in its own way.
"""
