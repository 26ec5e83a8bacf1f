"""``make release``: fills ``dist/`` with what people install without a checkout.

The same commit gives the same bytes: names are sorted, and every time is ``SOURCE_DATE_EPOCH``,
by default that of the commit. Nothing is fetched.
"""
