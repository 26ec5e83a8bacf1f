"""A node in this process: the simulated kubelet and our agent's parts, over real sockets.

For tests and benchmarks that need thousands of containers, or a fault at one exact step.
The pods come from an API server in memory. The agent's decision about each call is compared with
the kubelet's trace. This package assembles a node, injects faults and checks the results. Not
here: the kubelet itself (``simulator.kubelet``), real processes (``simulator.cluster``). I/O:
sockets and files in a temporary folder.
"""
