"""What is measured, against what: one module a question, each runnable alone.

Here belong the questions (``nodepath``, ``footprint``, ``webhook``, ...) and what they
are measured on: ``kubelet`` calls plugins, ``onenode`` runs an agent, ``servers`` whatever serves
HTTPS, ``cluster`` lists many objects, ``process`` starts and watches them. A question's ``run``
measures and gives a :class:`bench.result.Result`, which :func:`bench.result.publish` prints and
writes. What only checks belongs to the tests. ``bursts`` and ``reviews`` are pure.

Nothing outside ``bench`` and its tests may import this package.
"""
