"""``kubectl gpu``: the model in a terminal. Only prints; asks through :mod:`view.cluster`.

What is shown is laid out as plain values (:mod:`view.terminal.layout`), drawn by one module
(:mod:`view.terminal.screen`). Every text of the cluster is hostile: it passes ``safe``.
"""
