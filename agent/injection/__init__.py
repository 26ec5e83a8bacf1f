"""How a container gets its cards: device nodes, environment and CDI names.

``inject`` and ``cdi`` are pure; ``cdi_file`` reads and writes the host's specs.
"""
