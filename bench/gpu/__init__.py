"""``make gpu``: the programs on a real GPU, measured against loads of known size.

Everything that cannot be done on this machine is skipped, and the table says why.
"""
