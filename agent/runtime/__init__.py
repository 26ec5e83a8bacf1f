"""The container runtime: maps processes and cgroups to containers.

Adapters: CRI over gRPC, ``/proc`` and cgroup files. They only read.
"""
