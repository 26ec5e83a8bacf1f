"""Chooses the cards of containers: capacity, scoring, topology, and the search over a whole pod.

Pure: plain values in, plain values out. Imports only ``contract``, so that agent, scheduler
extender and view all place pods the same way.
"""
