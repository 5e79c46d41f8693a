"""Configurations of studies and sweeps; the package has the named ones in `runs/config/named/`."""
