"""Tasks: text, tokens, batches and scores."""
