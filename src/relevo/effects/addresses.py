"""Where a webhook may go: not into our own network, whatever a name resolves to."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from relevo.effects.verdicts import EffectRefused, NotDone

Address = IPv4Address | IPv6Address

_PLATFORM: Final = (ip_address("168.63.129.16"),)
"""Addresses that look public and are a cloud's own service inside (Azure's)."""
_NAT64: Final = ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether ``address`` is an ordinary one of the public Internet, also by what is wrapped in it."""
    inner = _wrapped(address)
    if inner is not None:
        return is_public(inner)
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not (isinstance(address, IPv6Address) and address.is_site_local)
        and address not in _PLATFORM
    )


def resolve(host: str, port: int, *, allow_private: bool) -> Sequence[str]:
    """The addresses of ``host``, asked once: connect to these and to nothing else, so that a name that answers
    differently the next time gains nothing. Raises ``EffectRefused`` if one of them is not public, ``NotDone`` when the
    name cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotDone(f"the name {host} cannot be resolved ({type(error).__name__})") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        if not allow_private and not is_public(ip_address(text.partition("%")[0])):
            raise EffectRefused(
                f"{host} is {text}, which is not an address of the public Internet; allow_private=True permits it"
            )
    return addresses


def _wrapped(address: Address) -> Address | None:
    """An IPv4 address carried in an IPv6 one, by which a gateway might reach it."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None
