"""The service that vcuda-controller registers at, generated from our own ``.proto`` file.

Only generated stubs and their source belong here; ``make proto`` writes them again and a test
holds that they are fresh.
"""
