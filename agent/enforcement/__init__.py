"""Enforcement of shares: one module for each mechanism.

Here belong the container edits that each mechanism needs, and the files they mount. Each module
implements ``Enforcer``; code outside does not depend on the mechanism.

Banned: decisions about allocations; calls to the kubelet or the API server.
"""
