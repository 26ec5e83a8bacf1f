"""A scheduler that knows extended resources and nothing else, and binds out of order.

``fit`` decides and is pure; ``reflector`` keeps a copy of what the API server has;
``scheduler`` puts the two together and binds. With a configuration that names extenders
``extended`` takes its place: ``queue``, ``cycle``, ``cache``, ``events``, ``scoring`` and
``configuration`` decide and are pure, ``extender`` and ``endpoint`` call. Other I/O goes
through ``simulator.client``.
"""
