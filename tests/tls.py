"""Servers that speak TLS alone, and the certificates for them and their clients.

Neither wheel brings a server that speaks TLS; Debian's Redis 7 does.
"""

from pathlib import Path
from typing import Any

import trustme

#: The kind of server that speaks it.
KIND = "redis7"
#: What `Tls.parameters` takes for servers that want a certificate of ours, as they do by default.
OURS = {"ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}


class Tls:
    """An authority of our own, and what it has signed, as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
        self.issue("server", "127.0.0.1")
        self.issue("client", "site.example.org")

    def issue(self, name: str, host: str, **options: Any) -> None:
        made = self.authority.issue_cert(host, **options)
        made.private_key_pem.write_to_path(self.folder / f"{name}.key")
        made.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")

    def options(self, name: str = "server") -> dict[str, str]:
        """Return the options of a server with a certificate that was issued. Servers use it among themselves, too."""
        return {
            "tls_cert_file": str(self.folder / f"{name}.pem"),
            "tls_key_file": str(self.folder / f"{name}.key"),
            "tls_ca_cert_file": str(self.folder / "ca.pem"),
            "tls_replication": "yes",
        }

    def files(self, **files: str) -> dict[str, str]:
        """Return redis-py's arguments of those who trust the authority, or another one if ``files`` say so."""
        told = {"ssl_ca_certs": "ca.pem"} | files
        return {name: str(self.folder / file) for name, file in told.items()}

    def parameters(self, **files: str) -> str:
        """Return `files` as the parameters of a URL."""
        return "&".join(f"{name}={file}" for name, file in self.files(**files).items())

    def url(self, port: int, host: str = "127.0.0.1", **files: str) -> str:
        """Return the URL of a single server."""
        return f"rediss://{host}:{port}/0?{self.parameters(**files)}"
