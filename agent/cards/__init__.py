"""The node's cards: their sources, their health, and their use.

``nvml`` and ``cards_file`` read; ``inventory``, ``health`` and ``topology_text`` are pure.
"""
