"""The host's driver files for containers (``--driver-dir auto``): found, laid out, renewed.

``ldcache`` and ``layout`` are pure; ``host`` reads the host's files, ``folder`` writes ours.
"""
