"""Enforcement by Tencent's vcuda-controller: its files and its registration service.

Here belong the bytes of ``vcuda.config`` and ``pids.config`` (pure), the service on a container's
``vcuda.sock``, and the checks of its clients.

Banned: decisions about allocations, and trust in a container's own claims.
"""
