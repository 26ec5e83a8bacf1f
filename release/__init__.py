"""``make release``: fills ``dist/`` with files for an installation without a checkout.

The same commit gives the same bytes: names are sorted, and every time is ``SOURCE_DATE_EPOCH``, by
default the time of the commit. Nothing is downloaded.
"""
