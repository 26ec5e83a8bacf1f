"""The agent's output for admins: log lines of decisions, metrics, the series of gauges.

Adapters. Nothing here decides, and no decision depends on it.
"""
