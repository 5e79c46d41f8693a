"""Studies of many networks: Monte-Carlo, comparisons, maps, races."""
