"""The contract between the webhook and the agent.

Here belong: the names of resources and annotations, the reading of a pod's
requests and wishes, order stamps, the allocation annotation, and the inventory
of a node's cards; also how documents that others wrote are read
(:mod:`contract.fields`). Everything is a pure function or a frozen dataclass.

Pods, templates and annotations are decoded JSON, possibly hostile; *path* is the prefix of
``metadata`` and ``spec`` in the paths of errors.

Banned: I/O of any kind, clocks, environment, randomness (they arrive as
arguments), and every import outside the standard library.
"""
