"""A certificate authority of a test's own, made with ``openssl``, and servers that show its certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Authority:
    """``certificate``: what a client trusts."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir()
        found = cls(folder)
        found._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", "/CN=authority of the test", "-keyout", "ca.key", "-out", "ca.pem"),
        )
        return found

    @property
    def certificate(self) -> str:
        return str(self.folder / "ca.pem")

    def server(self, names: str, *, days: int = 2) -> ssl.SSLContext:
        """For a server with a certificate for ``names`` (``DNS:…``, ``IP:…``); ``days`` 0: it has expired by now."""
        (self.folder / "names").write_text(f"subjectAltName={names}\n")
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=server of the test", "-keyout", "server.key", "-out", "server.csr"),
        )
        self._openssl(
            *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", str(days), "-extfile", "names", "-out", "server.pem"),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        return context

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
