"""The model: who holds which card, why pods are pending, and what would fit.

It is built from raw objects of the API server. Pure: no I/O, no library. Terminal and page only
show what it returns. :class:`view.model.state.ClusterState` takes the objects one by one and calls
all others:

- Read from objects: :mod:`node_facts`, :mod:`pod_facts`, :mod:`event_facts` (also which workloads'
  pods are denied), :mod:`usage` (the agents' gauges).
- What pods hold on a node: :mod:`occupancy`. Pods with a claim: :mod:`claims`.
- For the overview: :mod:`node_report` (one node, its cards and who holds them), :mod:`pod_report`
  (one pod), :mod:`pod_reasons` (why it is pending, refused, failing or failed, in one line),
  :mod:`pod_groups` (pods of one owner). :mod:`reports` defines the values.
- For ``kubectl gpu explain``: :mod:`pod_explanation` (progress and limits of one pod),
  :mod:`node_fits` (the nodes and cards on which it fits, and why not on the others),
  :mod:`suggested_changes` (after which it would fit).
- For ``kubectl gpu fit``: :mod:`manifest_fit`. For ``kubectl gpu top``: :mod:`usage_history`. For
  ``kubectl gpu doctor``: :mod:`doctor`.
- :mod:`words`: texts that all of these share.
"""
