"""Files that are whole or not there, and read without surprises."""
