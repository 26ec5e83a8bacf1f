"""The kubelet: the device plugin's gRPC server, registration, and the PodResources client.

Adapters: they translate messages and call the allocator. Nothing is decided here.
"""
