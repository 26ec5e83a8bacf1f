"""What Tencent's vcuda-controller talks to: its files and its registration service.

Here belong: the bytes of ``vcuda.config`` and ``pids.config`` (pure), the service on a
container's ``vcuda.sock``, and who may use it.

Banned: decisions about who gets what. What a container says of itself is not believed.
"""
