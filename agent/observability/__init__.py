"""What an admin sees of the agent: log lines of decisions, metrics, the HTTP endpoint.

Adapters. Nothing here decides, and nothing here is asked by what decides.
"""
