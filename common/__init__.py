"""Code that several programs need, without anything about GPUs.

Most modules here have no I/O except the log; ``listener`` and ``status`` have sockets.
``apiserver`` and ``serving`` are the adapters that several programs share, ``kubelet_api`` the
stubs of the kubelet's gRPC interfaces. Formats that programs must agree on are in ``contract``.
"""
