"""The node agent: a device plugin that resolves the container each call is for.

One package for each concern. ``allocator`` decides and does no I/O; ``kubelet``,
``kubernetes_api``, ``runtime``, ``cards``, ``injection``, ``enforcement`` and ``observability`` are
the adapters around it; ``app`` puts the parts together.
Only adapters import third-party libraries, and each library has one importer.

Banned here: importing another program, and keeping a checkpoint of our own (the kubelet's
checkpoint is the only one).
"""
