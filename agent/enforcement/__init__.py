"""Enforcement of shares: one module for each mechanism.

Here belong: what an ``Allocate`` answer must carry for each mechanism, and the files it names. Each
module implements ``Enforcer``; nothing outside knows which one is at work.

Banned: decisions about who gets what; asking the kubelet or the API server.
"""
