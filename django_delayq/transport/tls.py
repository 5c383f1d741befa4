"""TLS as all connections use it: the server's certificate has to be for the host that it is reached by."""

import ssl
from collections.abc import Mapping
from typing import Any

#: What turns the check of certificates off, as redis-py takes it.
_NO_CERTIFICATE = (None, "none", ssl.CERT_NONE)


def with_host_check(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection over TLS that checks the host's name, unless they say otherwise.

    By itself, redis-py before 6 accepts a certificate for any host.
    """
    told = arguments.get("ssl_check_hostname")
    if told is None:
        # Python refuses to check the name and not the certificate.
        told = not _takes_any_certificate(arguments)
    return {**arguments, "ssl_check_hostname": told}


def unchecked(arguments: Mapping[str, Any]) -> str:
    """Return the argument that lets a stranger pass for the server of a TLS connection; "" if there is none."""
    if _takes_any_certificate(arguments):
        return "ssl_cert_reqs=none"
    if not with_host_check(arguments)["ssl_check_hostname"]:
        return "ssl_check_hostname=false"
    return ""


def _takes_any_certificate(arguments: Mapping[str, Any]) -> bool:
    return arguments.get("ssl_cert_reqs", "required") in _NO_CERTIFICATE
