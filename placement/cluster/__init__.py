"""Nodes and pods as their objects show them: which pod holds which cards, what is free, what fits.

Pure. The scheduler extender decides by it, and the view explains it.
"""
