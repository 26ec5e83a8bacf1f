"""The node's driver for Dynamic Resource Allocation (``--mode dra``), instead of a device plugin.

Here belong the kubelet's two calls for a claim, the CDI spec of each prepared claim, the node's
ResourceSlices and the counts in the node's status. ``claims`` and ``devices`` are pure. No
container has to be inferred: a claim names its pod, and its requests name the containers.
"""
