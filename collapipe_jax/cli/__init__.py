"""The command ``collapipe``: one file a subcommand."""
