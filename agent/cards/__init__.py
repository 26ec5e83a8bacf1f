"""The node's cards: where they come from, and whether they may be given to new containers.

``nvml`` and ``cards_file`` read; ``inventory``, ``health`` and ``topology_text`` are pure.
"""
