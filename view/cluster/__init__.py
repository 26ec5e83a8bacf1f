"""The API server as the view reads it: lists, watches, and what agents measure. Never writes.

:class:`view.cluster.live.LiveCluster` reads nodes, pods and Events into a
:class:`view.model.state.ClusterState` and keeps it up to date. HTTP; no terminal, no page.
"""
