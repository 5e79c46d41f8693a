"""Studies of the paper: programs on top of the package."""
