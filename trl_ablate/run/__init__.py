"""A run on disk: written, read, sealed, masked. No torch."""
