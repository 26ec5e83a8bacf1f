"""The model: who holds which card, why pods are pending, and what would fit.

It is built from raw objects of the API server. Pure: no I/O, no library. Terminal and page only
show what it returns.

- :class:`view.model.state.ClusterState` takes objects one by one (``put_node``, ``drop_node``,
  ``put_pod``, ``drop_pod``, ``put_event``, ``set_gaps``) and returns ``report()`` (a
  ``ClusterReport``), ``explain(namespace, name)`` (a ``PodExplanation``) and ``fit(*manifests)``
  (a ``FitReport`` for each).
- :mod:`view.model.reports` and :mod:`view.model.explanation` define these results.
- :mod:`view.model.why` finds why a pod is pending, refused or failed, and
  :mod:`view.model.changes` after which changes it would fit.
"""
