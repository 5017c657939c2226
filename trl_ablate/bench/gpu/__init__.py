"""What no CPU can show, in one command: `trl-ablate bench gpu`. Its page is README.md here."""
