"""A kubelet without a node: device manager, admission, pod workers, PodResources.

The state of a real kubelet's device manager and the order of its calls are modelled in pure
modules (``state``, ``devices``, ``numa``, ``pods``, ``admission``): no I/O, no clock, no
randomness of their own. Sockets, files, threads and the API server belong to the other modules,
one of these to each; ``node`` combines them.

This package must not depend on gpu-turnstile: not on the names of its resources, not on slots of
a card. A fact about kubelets is named by its number (K1 to K35); docs/kubelet-facts.md maps each
to the code and to the tests that check it.
"""
