"""Measurements: one module for each question, such as ``start``, ``nodepath``, ``webhook``.

Each question can be measured alone. Its ``run`` returns a :class:`bench.result.Result`, which
:func:`bench.result.publish` prints and writes. ``start`` measures a real cluster; the others need
none. Other modules provide the surroundings: ``kubelet`` calls plugins, ``servers`` runs HTTPS
servers, ``cluster`` lists many objects, ``process`` starts and watches processes. ``load`` and
``reviews`` are pure. Checks without a measurement belong to the tests.

Nothing outside ``bench`` and its tests may import this package.
"""
