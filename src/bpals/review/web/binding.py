"""Where a room may be opened: on this machine freely, elsewhere only with accounts and with TLS."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from bpals.errors import UsageError
from bpals.review.people.accounts import AccountCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The address a room listens at, and who takes care of TLS."""

    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: str | None = None
    """The proxy's address: what it says of who asks is believed, and of nobody else."""
    public: str | None = None
    """The address as browsers write it, where it is not this one: https://room.example.org."""

    @property
    def origin(self) -> str:
        """The address as browsers write it."""
        if self.public:
            return self.public.rstrip("/")
        scheme = "https" if self.certificate else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"{scheme}://{host}" if self.port == (443 if self.certificate else 80) else f"{scheme}://{host}:{self.port}"
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(binding: Binding, cards: list[AccountCard]) -> None:
    """Refuse to open a room to others while anybody could walk in, or listen."""
    if (binding.certificate is None) != (binding.key is None):
        raise UsageError("TLS needs both files. Type: --tls-cert FILE --tls-key FILE")
    if binding.behind_proxy and not (binding.public or "").startswith("https://"):
        raise UsageError(
            "behind a proxy, say how browsers reach it. Type: --behind-proxy ADDRESS --public-url https://HOST"
        )
    if is_loopback(binding.host) and not binding.behind_proxy:
        return
    if not any((card.password or card.subject) and not card.disabled for card in cards):
        raise UsageError(
            f"{binding.host} can be reached by others and there is no account with a password or OIDC. "
            "Make one first: bpals review account add NAME --role admin"
        )
    if not binding.certificate and not binding.behind_proxy:
        raise UsageError(
            f"{binding.host} can be reached by others and nothing encrypts. Type: --tls-cert FILE --tls-key FILE, "
            "or put a proxy before it: --behind-proxy ADDRESS --public-url https://HOST"
        )
    if is_loopback(binding.host) or binding.public:
        return
    try:
        wild = ipaddress.ip_address(binding.host).is_unspecified
    except ValueError:
        wild = False
    if wild:
        raise UsageError(f"{binding.host} is no address that a browser can open. Add: --public-url https://HOST")
