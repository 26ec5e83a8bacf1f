"""Handing the node over from one agent to the next, without the kubelet seeing the plugin gone.

Two agents may be on a node: one serves, one stands by (facts K18, K19 and K26,
docs/kubelet-facts.md). The one that serves holds a lock on a file below the plugin
directory, for life; the kernel frees it when the process dies. On a socket beside it the other
waits. Everything is said in this order:

======  ===================  ===========================================================
from    message              what it means
======  ===================  ===========================================================
standby ``ready``            loaded, its gRPC servers listen, it has written nothing
serving ``take``             with the lock: from now on both hold it. No call is being
                             decided, and none will be before ``registered``
serving ``holding``          what one container holds, so often as there are containers
serving ``told``             that was all
standby ``registered``       the kubelet asks the successor from now on
serving ``holding``, ``told``  again, after each call that the kubelet had begun with the old one
standby ``noted``            after each ``told``
serving ``connections``      the kubelet's connections, as open files
standby ``taken``            the old agent may exit; it closes nothing
======  ===================  ===========================================================

Either side may die at any point: the other then holds the lock, and serves.

I/O: the lock, the socket and the connections; no gRPC, no Kubernetes.
"""
