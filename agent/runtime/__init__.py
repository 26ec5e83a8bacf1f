"""The container runtime: which process and which cgroup belongs to which container.

Adapters: CRI over gRPC, ``/proc`` and cgroup files. Only reads.
"""
