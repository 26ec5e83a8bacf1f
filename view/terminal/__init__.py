"""``kubectl gpu``: shows the model in a terminal; reads through :mod:`view.cluster`.

Pages are laid out as plain values (:mod:`view.terminal.layout`) and drawn by one module
(:mod:`view.terminal.screen`). Texts of the cluster may be hostile: all pass through ``safe``.
"""
