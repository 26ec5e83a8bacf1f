"""How ours answers the cases of other projects' own tests.

``cases/`` has a file of cases a peer, as data of our own making: what is asked, and what the peer's
test expects; ``machines.toml`` has their nodes. ``questions`` asks our code the same, ``verdicts``
compares, ``machines`` has NVIDIA's rule, ``quality`` goes through all sets of free cards, ``run``
makes the tables. Nothing here but the reading of these files is I/O.
"""
