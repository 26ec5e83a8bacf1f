"""Small parts that all programs need and that say nothing of GPUs.

Standard library only, and no I/O but the log's. What programs must agree on is in ``contract``,
not here.
"""
