"""Nodes and pods as their objects show them: who holds what, what is free, and what fits.

Pure. Shared by the scheduler, which decides by it, and by the view, which explains it.
"""
