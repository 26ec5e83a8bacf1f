"""A node in this process: the simulated kubelet and our agent's parts, over real sockets.

For tests and benchmarks that need thousands of containers, or a fault at one exact step.
The pods come from an API server in memory. What the agent said of each call is
compared with the kubelet's own trace. Belongs here: putting a node together, harming it and
judging it. Not here: the kubelet itself (``simulator.kubelet``), real processes
(``simulator.cluster``). I/O: sockets and files in a temporary folder.
"""
