"""The end of a certificate's validity. The only importer of ``cryptography`` here."""

import math

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm


def not_after(pem: bytes) -> float:
    """Return the end of the first certificate in *pem*, as unix time in seconds.

    Not a number where ``cryptography`` cannot read what OpenSSL serves: a certificate is not
    refused because its end cannot be shown.
    """
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return math.nan
