"""The cluster for people: a pure model, and its faces, the kubectl plugin and the page.

Reads nodes, pods and Events, and never writes anything.
"""
