"""The second factor: six digits of an app that change every 30 seconds (TOTP, RFC 6238)."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable

import pyotp

STEP_S = 30
DRIFT = (0, -1, 1)
"""Steps by which the app's clock may be off."""


class SecondFactor:
    """Checks codes; a code that was taken once is not taken again by this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with no code taken."""
        self._clock = clock
        self._taken: dict[int, int] = {}
        self._turn = threading.Lock()

    def fits(self, account_id: int, secret: str, code: str) -> bool:
        """Say whether a code is the account's now, and was not taken before."""
        totp = pyotp.TOTP(secret, interval=STEP_S)
        now = int(self._clock()) // STEP_S
        given = code.strip().encode("utf-8", "replace")
        with self._turn:
            for step in (now + drift for drift in DRIFT):
                right = hmac.compare_digest(totp.generate_otp(step).encode(), given)
                if right and step > self._taken.get(account_id, -1):
                    self._taken[account_id] = step
                    return True
        return False


def new_secret() -> str:
    """Make the secret that the app and the ledger share."""
    return pyotp.random_base32()


def address(secret: str, name: str, title: str) -> str:
    """Write a secret as the otpauth:// address that an app reads."""
    return pyotp.TOTP(secret, interval=STEP_S).provisioning_uri(name=name, issuer_name=title)
