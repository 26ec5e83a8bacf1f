"""An adversary of the agent: a kubelet, an API server and bad luck, in one process.

The agent's allocator and pod cache run against the simulated kubelet's device manager, driven in
one thread, and against pods and an API server that are modelled here. The world knows the truth:
which container asks, what it holds, what is free. A judge compares every answer with it, and an
exact search says of every refusal whether the pod could have run. Everything falls from a seed.
Nothing here imports gRPC, opens a socket or waits for a clock.
"""
