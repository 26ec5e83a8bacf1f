"""The scheduler extender: which nodes have cards for a pod, how well, and which cards.

A stock kube-scheduler counts places per node and knows of no card. It asks here (HTTP, JSON): which
of these nodes fit, how good they are, and to bind the pod. The choice of cards goes along with the
Binding as a hint; the agent on the node follows it where it fits, and remains the referee.

Decisions are pure (``score``, ``state``, ``decisions``). ``cluster`` talks to the API
server, ``app`` and ``server`` to kube-scheduler.
"""
