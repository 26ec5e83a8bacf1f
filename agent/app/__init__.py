"""The agent as a program: put together, run, handed over and ended.

The only package that knows all others.
"""
