"""The cluster for people: who holds which card, what waits and why, what would fit.

Made of the raw objects of the API server. Pure: no I/O, no library. The terminal and the page
show what is here and decide nothing.

- :class:`view.model.state.ClusterState` takes objects in, one by one: ``put_node``, ``drop_node``,
  ``put_pod``, ``drop_pod``, ``put_event``, ``set_gaps``; and answers ``report()`` (a
  ``ClusterReport``), ``explain(namespace, name)`` (a ``PodStory``) and ``fit(*manifests)``
  (a ``FitReport`` each).
- :mod:`view.model.reports` and :mod:`view.model.explanation` have what comes out.
- :mod:`view.model.why` says why a pod waits, was refused or failed, :mod:`view.model.changes` what
  would let it run.
"""
