"""The use of cards by containers: the driver's samples joined with the record.

Deciding (:mod:`agent.usage.join`) is pure. Asking is not: the driver
(:mod:`agent.cards.nvml_use`), the kernel and the container runtime (:mod:`agent.usage.meter`).
Nothing here changes who gets what.
"""
