"""The node's cards: their sources, their health, and their use.

``nvml`` and ``cards_file`` read; ``inventory`` and ``health`` are pure.
"""
