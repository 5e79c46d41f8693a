"""Training: the joint loop of network and model, and what it keeps."""
