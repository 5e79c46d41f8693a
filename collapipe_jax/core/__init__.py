"""Ground that every wing stands on: errors, numbers with units, batch axes, files."""
