"""``make gpu``: check the programs on a real GPU, with loads of known size.

A check that is not possible on this machine is skipped, and the table shows why.
"""
