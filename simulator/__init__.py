"""Simulated nodes: API server, scheduler and kubelet, for demo, tests and benchmarks.

This package models the parts of Kubernetes that a GPU pod uses. This folder's README.md lists
what is modelled; nothing else is. What Kubernetes does not define (orders, delays, names) is
random, from a given seed.

I/O is allowed: sockets, processes, files in folders that the caller names. The package may import
every other package of the project; none of them may import this one.
"""
