"""The scheduler extender: finds the nodes whose cards fit a pod, scores them, and binds the pod.

A stock kube-scheduler counts resources per node, not per card. It calls the extender (HTTP, JSON)
to filter and score nodes, and to bind the pod. The Binding has annotations with the chosen cards.
They are a hint: the agent on the node follows them if they fit, and decides.

Decisions are pure (``score``, ``state``, ``decisions``, ``victims``). ``cluster`` calls the API
server; ``app`` and ``server`` serve kube-scheduler. ``preemption`` calls its parts in turn:
``preemptors``, ``victims``, ``evictor`` and ``writer``.
"""
