"""The use of cards by containers: the driver's samples joined with the snapshot.

:mod:`agent.usage.join` decides and is pure. :mod:`agent.usage.meter` reads from the driver (by
:mod:`agent.cards.nvml_use`), the kernel and the container runtime. Nothing here affects
allocations.
"""
