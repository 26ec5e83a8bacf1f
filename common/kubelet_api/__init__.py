"""The kubelet's gRPC interfaces: messages generated from our own ``.proto`` files.

Only generated messages and their sources belong here, the names of the kubelet's own files beside
them, and what our programs add to the interfaces. ``make proto`` writes the messages again, and a
test holds that they are fresh. :mod:`common.grpc_services` serves and calls the services.
"""

KUBELET_SOCKET = "kubelet.sock"
"""A kubelet's socket, in its device plugin directory."""

CHECKPOINT_FILE = "kubelet_internal_checkpoint"
"""The file in the kubelet's device plugin directory with the devices of all containers (K27)."""

RESOURCES_KEY = "plugin-resources"
"""The metadata of a registration in which a plugin names all its resources, separated by commas.
The device plugin proxy reads it; a kubelet ignores it."""
