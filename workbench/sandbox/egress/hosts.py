"""Names and addresses of hosts: one canonical form of each, rules that match them, and which addresses are public.

A name is compared only in its canonical form: lower case, labels of ASCII (a name in another script as IDNA has it), no
trailing dot. An IPv4 address in any notation but the usual one is no name either: it's refused, since whoever resolves it
may take it for an address (`0x7f.1`, `2130706433`, `127.1`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import idna

from workbench.errors import OptionsError

Address = IPv4Address | IPv6Address
Host = str | Address
"""A host: its canonical name, or its address."""

DEFAULT_PORTS = (80, 443)

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# A last label by which a resolver takes the whole for an IPv4 address (URL Standard, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_LIMIT = 253
_WILDCARD = "*."

# IANA's special-purpose address registries, and multicast. Python's `is_global` differs from version to version.
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
         "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
         "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32"),
    )
)  # fmt: skip
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")


def canonical(text: str) -> Host:
    """The canonical form of a host as a URL has it, without its port; an IPv6 address stands in brackets.

    Raises ValueError, with a sentence that says why, where it's neither a name nor an address in its usual notation.
    """
    if text.startswith("["):
        if not text.endswith("]") or "%" in text:
            raise ValueError("it isn't an address")
        return _unmapped(IPv6Address(text[1:-1]))
    try:
        return IPv4Address(text)
    except ValueError:
        return _canonical_name(text)


def _canonical_name(text: str) -> str:
    name = text.lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode("ascii").lower()
        except idna.IDNAError as error:
            raise ValueError(f"it isn't a name: {error}") from error
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > _NAME_LIMIT or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("it isn't a name")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("it's an address in an unusual notation")
    return name


def _unmapped(address: IPv6Address) -> Address:
    """An IPv4 address that was written as an IPv6 one is that IPv4 address."""
    return address.ipv4_mapped or address


def split_port(text: str) -> tuple[str, int | None]:
    """`host:port` as its parts; None where there's no port. Raises ValueError for a port that can't be."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{port[:10]!r} isn't a port")
    return host, int(port)


def written(host: Host) -> str:
    """A host as a URL has it."""
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host)


def is_public(address: Address) -> bool:
    """Whether an address is of the internet: not private, loopback, link-local, multicast, a cloud's metadata, reserved."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    return not any(address in network for network in _NOT_PUBLIC_4)


def parse_address(text: str) -> Address:
    """An address as a resolver or the kernel writes it, with or without a zone. Raises ValueError."""
    address = ip_address(text.partition("%")[0])
    return _unmapped(address) if isinstance(address, IPv6Address) else address


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that may be reached: itself, or with `below` every name below it (whole labels), on `ports`."""

    host: Host
    below: bool
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Of `example.com`, `*.example.com`, `192.0.2.7`, `[2001:db8::7]`, each with or without `:port`.

        Without a port it's 80 and 443. Raises OptionsError.
        """
        try:
            if "/" in text:
                raise ValueError("it's a URL, or a part of one")
            named, port = split_port(text)
            below = named.startswith(_WILDCARD)
            host = canonical(named.removeprefix(_WILDCARD) if below else named)
            if below and not isinstance(host, str):
                raise ValueError("nothing is below an address")
        except ValueError as error:
            raise OptionsError(
                f"{text!r} doesn't say which host may be reached: {error}.",
                hint="Name it alone, such as example.com, example.com:8080, *.example.com, 192.0.2.7 or [2001:db8::7].",
            ) from error
        return cls(host, below, DEFAULT_PORTS if port is None else (port,))

    def matches(self, host: Host, port: int) -> bool:
        """Whether this rule allows a host on a port."""
        if port not in self.ports:
            return False
        if self.below:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host
