"""The contract between the webhook and the agent.

Here belong: the names of resources and annotations, the reading of what a pod
asks for, order stamps, the allocation record, and the inventory of a node's
cards. Everything is a pure function or a frozen dataclass.

Banned: I/O of any kind, clocks, environment, randomness (they arrive as
arguments), and every import outside the standard library.
"""
