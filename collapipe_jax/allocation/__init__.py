"""Shares and powers of a fixed partition: the smooth objective, its descent, certificates.

Names mean the same throughout: ``fixed`` is the partition, ``logs`` are the variables,
``weights`` those of the maxima, ``coupling`` stands for the other clusters. Problems,
partitions and decisions have the same batch axes, last.
"""
