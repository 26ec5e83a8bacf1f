"""What containers use of the cards: the driver's samples joined to those who hold the cards.

Deciding (:mod:`agent.usage.join`, :mod:`agent.usage.overuse`) is pure. Asking is not: the driver
(:mod:`agent.cards.nvml_use`), the kernel and the container runtime (:mod:`agent.usage.owners`).
Nothing here changes who gets what.
"""
