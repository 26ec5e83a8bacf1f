"""The container runtime's gRPC interface (CRI v1), generated from our own ``.proto`` file.

Only generated stubs and their source belong here; ``make proto`` writes them again and a test
holds that they are fresh.
"""
