"""The kubelet's gRPC interfaces, generated from our own ``.proto`` files.

Only generated stubs and their sources belong here; ``make proto`` writes them
again and a test holds that they are fresh.
"""
