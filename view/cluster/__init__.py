"""Reads the API server: lists, watches, and the agents' metrics. Never writes.

:class:`view.cluster.live.LiveCluster` reads nodes, pods and Events into a
:class:`view.model.state.ClusterState` and keeps it up to date. Knows neither terminal nor page.
"""
