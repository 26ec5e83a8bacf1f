"""What containers hold of the node's cards, whichever door gave it to them.

A door is a way to a card: the device plugin (:mod:`agent.allocator`), or claims (:mod:`agent.dra`).
Both produce a :class:`~agent.holdings.holding.Holding` for each container. Enforcement, injection,
annotations, gauges and free amounts read only these. No I/O, clock or chance; device IDs and claims
are not known here. Start at ``holding.py``, then ``core.py``.
"""
