"""The kubelet: the device plugin's gRPC server, registration, and the PodResources client.

Adapters: messages in, the allocator called, messages out. Nothing is decided here.
"""
