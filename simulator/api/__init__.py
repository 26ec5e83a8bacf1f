"""An API server in memory: objects, lists and watches, patches, admission webhooks.

The modules with the rules do no I/O: ``errors``, ``resources``, ``selectors``, ``quantities``,
``patching``, ``validation``, ``store``, ``webhooks``, ``review``. ``operations`` calls them in
the order of the real server. Three modules do I/O: ``caller`` (calls webhooks over TLS),
``http`` (serves clients) and ``server`` (the thread, the socket, the faults that a test can
cause). Only ``caller`` and ``http`` import aiohttp, only ``patching`` imports jsonpatch.

Only one event loop uses the store, so no module here needs a lock for it.
"""
