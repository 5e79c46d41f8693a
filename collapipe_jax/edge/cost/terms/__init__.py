"""Terms that add to a round: one file each, summed by :mod:`.sums`."""
