"""The API server: pods read, annotations, Events and the inventory written.

Adapters, each with a thread or a queue of its own; no call of the kubelet waits for a write.
"""
