"""The shipped worlds of the miniature, a file each."""
