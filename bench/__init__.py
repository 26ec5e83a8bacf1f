"""What is measured, against what: one module a question, each runnable alone.

Here belong the questions (``attribution``, ``nodepath``, ``placement``, ``footprint``, ``webhook``,
...), what they are measured on (``kubelet`` calls plugins, ``onenode`` runs an agent,
``servers`` whatever serves HTTPS, ``cluster`` lists many objects, ``process`` starts and watches
them), and the rules of other projects that ours is compared with; ``peers`` has the cases of their
tests. A question's ``run`` measures and gives a :class:`bench.result.Result`; only ``report``
prints, only ``__main__`` writes files.
``rules``, ``packing`` and ``reviews`` are pure.

Nothing outside ``bench`` and its tests may import this package.
"""
