"""A scheduler that knows extended resources and nothing else, and binds out of order.

``fit`` decides and is pure; ``reflector`` keeps a copy of what the API server has;
``scheduler`` puts the two together and binds. I/O goes through ``simulator.client``.
"""
