"""Questions and reference answers from files, folders and the Hub."""
