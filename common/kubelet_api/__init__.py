"""The kubelet's gRPC interfaces, generated from our own ``.proto`` files.

Only generated stubs and their sources belong here, and what our programs add to the interfaces.
``make proto`` writes the stubs again, and a test holds that they are fresh.
"""

RESOURCES_KEY = "plugin-resources"
"""The metadata of a registration in which a plugin names all its resources, separated by commas.
The device plugin proxy reads it; a kubelet ignores it."""
