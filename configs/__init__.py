"""Configurations of studies and sweeps; `runs/config/named.py` of the package has the others."""
