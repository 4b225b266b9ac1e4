"""Whom an effect trusts: always checked, host name included; there is no switch for less."""

from __future__ import annotations

import ssl

from relevo.effects.verdicts import EffectRefused
from relevo.errors import ConfigError


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """The system's authorities, or those of ``ca_file`` (PEM) and no others. Raises ``ConfigError`` for a file that
    cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file {ca_file!r} has no certificates that can be read ({error})") from None


def refused(place: str, error: ssl.SSLCertVerificationError) -> EffectRefused:
    """What is said of a certificate that is not accepted: a person must mend it, on this side or on the other."""
    return EffectRefused(f"the certificate of {place} is not accepted: {error.verify_message}. Nothing was sent")
