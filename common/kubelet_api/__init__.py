"""The kubelet's gRPC interfaces, generated from our own ``.proto`` files.

Only generated stubs and their sources belong here, the name of the kubelet's own file beside them,
and what our programs add to the interfaces.
``make proto`` writes the stubs again, and a test holds that they are fresh.
"""

CHECKPOINT_FILE = "kubelet_internal_checkpoint"
"""The file in the kubelet's device plugin directory with the devices of all containers (K27)."""

RESOURCES_KEY = "plugin-resources"
"""The metadata of a registration in which a plugin names all its resources, separated by commas.
The device plugin proxy reads it; a kubelet ignores it."""
