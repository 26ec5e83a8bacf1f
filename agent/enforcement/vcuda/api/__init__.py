"""The registration service for vcuda-controller, generated from our own ``.proto`` file.

Only generated messages and their source belong here. ``make proto`` generates them, and a test
checks that they are up to date.
"""
