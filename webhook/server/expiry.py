"""When a certificate ends. The only importer of ``cryptography`` here."""

import math

from cryptography import x509


def not_after(pem: bytes) -> float:
    """Give the end of the first certificate in *pem*, as unix time in seconds.

    Not a number for what OpenSSL serves although it keeps to no standard: a certificate is
    not refused because its end cannot be shown.
    """
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return math.nan
