"""Parts that several programs need and that say nothing of GPUs.

The modules here use the standard library only, and do no I/O but the log's; ``apiserver`` and
``serving`` are the adapters that several programs share, ``kubelet_api`` the stubs of the kubelet's
gRPC interfaces.
What programs must agree on is in ``contract``, not here.
"""
