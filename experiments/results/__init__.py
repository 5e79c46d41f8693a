"""What was measured, as data, and how it is measured again."""
