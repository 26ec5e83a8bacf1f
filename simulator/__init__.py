"""A node without a node: API server, scheduler and kubelet, for demo, tests and benchmarks.

Here belong models of the parts of Kubernetes that a GPU pod meets, faithful in what
README.md of this folder lists and silent about the rest. Everything that Kubernetes
leaves open (orders, delays, names) is drawn from a seed that is given.

I/O is allowed: sockets, processes, files in folders that the caller names. May import
every other package of the project; none of them may import this one.
"""
