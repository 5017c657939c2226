"""What fits on a machine and how long a step takes, on paper. No torch.

The command is `trl-ablate plan`; the page is README.md here.
"""
