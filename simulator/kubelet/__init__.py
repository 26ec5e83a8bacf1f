"""A kubelet without a node: device manager, admission, pod workers, PodResources.

What the device manager of a real kubelet remembers and in which order it asks is
modelled in pure modules (``devices``, ``numa``, ``pods``, ``admission``, ``ratelimit``):
no I/O, no clock, no randomness of their own. Sockets, files, threads and the API
server belong to the others, one outside thing each; ``node`` ties them together.

Nothing here may know how gpu-turnstile works: no name of its resources, no place on
a card. A fact about kubelets is named by its number (K1 to K35);
docs/kubelet-facts.md maps each to the code and to the tests that hold it.
"""
