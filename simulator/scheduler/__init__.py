"""A scheduler that counts extended resources and can call one extender; it binds out of order.

``fit`` and ``configuration`` are pure, ``extender`` calls the extender, ``scheduler`` chooses
nodes and binds pods. Other I/O goes through ``simulator.client``.
"""
