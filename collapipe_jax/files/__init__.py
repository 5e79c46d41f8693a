"""Files: checkpoints, JSON documents, atomic writes."""
