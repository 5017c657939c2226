"""The command line: one file a command, and all printing."""
