"""The API server: reads pods and the node; writes annotations, Events and the inventory.

Adapters, each with its own thread or queue; no call of the kubelet waits for a write.
"""
