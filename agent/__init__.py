"""The node agent: a device plugin that knows which container each call is for.

One package a concern. ``allocator`` decides and does no I/O; ``kubelet``, ``kubernetes_api``,
``runtime``, ``cards``, ``injection``, ``enforcement`` and ``observability`` are the adapters
around it; ``app`` puts all together.
A third-party library is imported by adapters only, each by one.

Banned here: importing another program, and files as a checkpoint (the kubelet's own record is
the checkpoint).
"""
