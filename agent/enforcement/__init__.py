"""What holds a container to its share: one module a way of doing it.

Here belong: what an ``Allocate`` answer must carry for each way, and the files it names. Each
module implements ``Enforcer``; nothing outside knows which one is at work.

Banned: decisions about who gets what; asking the kubelet or the API server.
"""
