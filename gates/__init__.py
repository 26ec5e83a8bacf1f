"""The AdmissionCheck controller of Kueue: admits a workload only if all its pods find cards.

Kueue counts quota, not cards. It reserves quota for a workload, and asks this controller before it
admits it. The controller looks for cards for all pods of the workload, card by card, and keeps them
until the pods are bound. Without cards, Kueue takes the quota back, and tries later.

``search`` decides without I/O. ``checker`` asks it about one workload after the other, and writes
the states of checks. The state of the cluster, what is kept in it, and the election of the replica
that writes are the scheduler extender's.
"""
