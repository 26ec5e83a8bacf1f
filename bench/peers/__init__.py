"""How ours answers the cases of other projects' own tests.

One module a peer has its cases as data of our own making: what is asked, and what the peer's test
expects. ``questions`` asks our code the same, ``verdicts`` compares, ``machines`` has the nodes and
NVIDIA's rule, ``quality`` goes through all sets of free cards, ``run`` makes the tables. All pure.
"""
