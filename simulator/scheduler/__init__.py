"""A scheduler that counts extended resources, and may ask one extender; it binds out of order.

``fit`` and ``configuration`` decide and are pure, ``extender`` calls the extender, ``scheduler``
puts them together and binds. Other I/O goes through ``simulator.client``.
"""
