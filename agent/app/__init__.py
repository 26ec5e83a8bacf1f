"""The agent as a program: put together, run and ended.

The only package that knows all others.
"""
