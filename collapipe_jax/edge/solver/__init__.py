"""Solver of a round: shares and powers of a partition, and the search for partitions.

Names mean the same throughout: ``fixed`` is the partition, ``logs`` are the variables,
``weights`` those of the maxima, ``coupling`` stands for the other clusters. Problems,
partitions and decisions have the same batch axes, last. In searches a problem has one batch
axis, ``R``; candidates have theirs, ``C``, before it. Functions take ``fix`` where a policy
fixes partitions in its own way.
"""
