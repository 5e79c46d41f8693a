"""Tasks: corpora, tokens, objectives and scores; one registry entry each."""
