"""The parts of `trl-ablate bench gpu`: each file has a `measure`, registered in `registry.py`.

Nothing here asks which device it is on but for what only a GPU has (sleep mode, the cap on its
memory), so that a CPU at toy size takes the same way through the code.
"""
