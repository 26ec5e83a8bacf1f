"""Plain values of the allocator: pods, tickets, and what checkpoint and ``List`` show.

Parsed at the border and frozen. No I/O.
"""
