"""An API server in memory: objects, lists and watches, patches, admission webhooks.

What decides is free of I/O: ``errors``, ``resources``, ``selectors``, ``quantities``,
``patching``, ``validation``, ``store``, ``webhooks``, ``review``. ``operations`` puts
them in the order a request goes through. I/O is in three modules: ``caller`` (calls
webhooks over TLS), ``http`` (serves clients) and ``server`` (the thread, the socket,
the faults a test can cause). aiohttp is imported in ``caller`` and ``http`` only,
jsonpatch in ``patching``.

One event loop owns the store: no module here takes a lock for it.
"""
