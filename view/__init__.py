"""Shows the GPUs of the cluster: a pure model, a kubectl plugin and a web page.

Reads nodes, pods and Events. Only ``kubectl gpu cordon`` and ``uncordon`` write.
"""
