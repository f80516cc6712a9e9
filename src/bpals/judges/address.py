"""Which addresses an image judge may send an image to.

An image goes where the user points, and nowhere else: by https to any public host, by http to this machine, and to a
private host or by plain http only where the user listed it. Link-local addresses, cloud metadata services, multicast
and addresses that mean no host are refused whatever is listed, in every spelling: when the URL is read, and again for
the address that its name resolves to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from bpals.errors import JudgeError

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

# Turns a host and a port into IP addresses.
Resolve = Callable[[str, int], Awaitable[Iterable[str]]]

# Narrow on purpose: whatever another parser could read in another way does not match.
URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<userinfo>[^/@]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~+@:-]+)*)/*"
)

EXAMPLE = "--base-url http://127.0.0.1:8000/v1"
PORTS = {"http": 80, "https": 443}

METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
# Services that give a cloud machine its own credentials and stand outside the link-local block.
METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)

# Blocks of IPv6 that stand for an IPv4 address, and how many bits come after it.
V4_INSIDE = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),  # translated
    (ipaddress.IPv6Network("::/96"), 0),  # compatible
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)

# This network, reserved addresses, and two kinds of tunnel (local NAT64, Teredo) with an unknown other end.
NO_HOST = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "240.0.0.0/4", "64:ff9b:1::/48", "2001::/32")))

NUMBER = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A base URL that was read and may be used, if the addresses of its host may be."""

    scheme: Literal["http", "https"]
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """Starts with a slash or is empty; never ends with one."""
    listed: bool
    """Whether the user named the host as one that may be private, or used without TLS."""

    @classmethod
    def read(cls, url: str, *, allow: Iterable[str] = ()) -> Address:
        """Read a base URL as a user types it, and refuse one that must not be used."""
        found = URL.fullmatch(url.strip())
        if not found or found["userinfo"] or not found["host"].strip("."):
            raise JudgeError(f"base URL {quoted(url)} cannot be used: {unreadable(url)}. Type: {EXAMPLE}")
        scheme = found["scheme"].lower()
        port = int(found["port"] or PORTS.get(scheme, 0))
        if scheme not in PORTS or not 0 < port < 2**16:
            wrong = f"port {port}" if scheme in PORTS else f"{scheme}://"
            raise JudgeError(f"base URL {quoted(url)} cannot be used: {wrong} is not asked. Type: {EXAMPLE}")
        host = found["host"].lower().strip("[]").rstrip(".")
        address = cls(
            scheme="https" if scheme == "https" else "http",
            host=host,
            port=port,
            path=found["path"],
            listed=host in {name.lower().strip("[]").rstrip(".") for name in allow},
        )
        address.check_host()
        return address

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a key belongs to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def number(self) -> IP | None:
        """The IP address that the host is, written the one canonical way; None if it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def local(self) -> bool:
        """Whether the host is this machine by its very name."""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        return self.number is not None and unwrapped(self.number).is_loopback

    def check_host(self) -> None:
        """Refuse a host by how it is written: before any name is resolved."""
        if self.host in METADATA_NAMES:
            raise JudgeError(f"base URL host {self.host} is a metadata service, which is never asked. Type: {EXAMPLE}")
        if self.number is not None:
            self.check(self.number)
        elif NUMBER.fullmatch(self.host.rpartition(".")[2]) or ":" in self.host:
            raise JudgeError(f"base URL host {self.host} is a number in disguise: write it as 127.0.0.1 or as a name.")
        if self.scheme == "http" and not self.local and not self.listed:
            raise JudgeError(
                f"base URL {self.origin} is plain http to another machine: films and the key would travel unencrypted."
                f" Use https, or type: --allow-host {self.host}"
            )

    def check(self, ip: IP | str) -> None:
        """Refuse the address that the host stands for; called with each one before it is connected to."""
        where = ipaddress.ip_address(ip.partition("%")[0]) if isinstance(ip, str) else ip
        real = unwrapped(where)
        named = f"{self.host} ({where})" if str(where) != self.host else self.host
        if always_refused(real) or always_refused(where):
            raise JudgeError(f"base URL host {named} is link-local, a metadata service or no host: it is never asked.")
        if real.is_loopback and (self.local or self.listed):
            return
        if self.local and not real.is_loopback:
            raise JudgeError(f"base URL host {named} should be this machine and is not: write 127.0.0.1.")
        if not real.is_global and not self.listed:
            raise JudgeError(f"base URL host {named} is a private address. To allow it, type: --allow-host {self.host}")


class CheckedResolver:
    """Resolves names to addresses, each checked before it is used; no socket is opened to any other."""

    def __init__(self, resolve: Resolve) -> None:
        """Trust no host yet."""
        self._resolve = resolve
        self._trusted: dict[str, list[Address]] = {}
        self._checked: set[str] = set()

    def trust(self, address: Address) -> None:
        """Let this host be resolved, or connected to if it is a number already."""
        self._trusted.setdefault(address.host, []).append(address)
        if address.number is not None:
            self._checked.add(str(address.number))

    async def resolve(self, host: str, port: int = 0, **_: object) -> list[dict[str, Any]]:
        """Resolve a name for the client; one bad address among several refuses them all."""
        found = [number for number in await self._resolve(host, port) if number]
        # All of them: the client may connect to any address of the list.
        for number in found:
            for address in self._trusted[host]:
                address.check(number)
        if not found:
            raise OSError(f"{host} has no address")
        self._checked.update(found)
        common = {"hostname": host, "port": port, "proto": 0, "flags": socket.AI_NUMERICHOST}
        families = [socket.AF_INET6 if ":" in number else socket.AF_INET for number in found]
        return [{**common, "host": number, "family": family} for number, family in zip(found, families, strict=True)]

    def open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Open the socket of a connection, to a checked address only."""
        family, kind, protocol, _, where = info
        if where[0] not in self._checked:
            raise JudgeError(
                f"{where[0]} was not checked and is not connected to. This is a fault of bpals: report it."
            )
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        return opened

    async def close(self) -> None:
        """Hold nothing."""


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Ask the system's name service."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def unwrapped(ip: IP) -> IP:
    """Take the IPv4 address out of an IPv6 address that only wraps one."""
    if isinstance(ip, ipaddress.IPv6Address) and int(ip) > 1:
        for block, shift in V4_INSIDE:
            if ip in block:
                return ipaddress.IPv4Address(int(ip) >> shift & 0xFFFFFFFF)
    return ip


def always_refused(ip: IP) -> bool:
    """Say whether an address is refused whatever the user lists."""
    special = ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip in METADATA
    return special or any(ip in block for block in NO_HOST if block.version == ip.version)


def unreadable(url: str) -> str:
    """Write why a URL does not match."""
    if "@" in url:
        return "a name or password in a URL is never sent; give the key by its variable"
    if "://" not in url:
        return "it has no http:// or https://"
    return "it is not a plain http(s)://host:port/path in ASCII letters"


def quoted(url: str) -> str:
    """Quote a URL for a message: one line, not long, and without what stands before an @."""
    return repr(re.sub(r"//.*@", "//...@", url, flags=re.DOTALL)[:120])
