"""The host's driver files, copied into a folder for containers (``--driver-dir auto``).

``ldcache`` and ``layout`` are pure; ``host`` reads the host's files, ``folder`` writes ours.
"""
