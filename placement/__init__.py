"""The choice of a container's cards: capacity, scoring, topology, and the search over a whole pod.

Pure: plain values in, plain values out. Knows ``contract`` only, so that the agent, a scheduler
and a tool for people place alike.
"""
