"""One exchange with an OpenAI-compatible endpoint: a body goes out, a JSON object comes back, or a reason why not.

A fault has one of three ends, and who must act tells them apart:

Passing           asking again may help: the runner does, for here nothing is ever retried
RequestRefused    this request will never be taken; the next one may
JudgeError        nothing can be asked here until the user mends the address, the key or the certificate

Each exchange has one deadline around all of it, because a server that sends a byte now and then never trips a read
timeout; and a limit on its bytes, packed and unpacked. Nothing is sent on to where a server redirects.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.address import Address, CheckedResolver, Resolve, resolve_by_system
from bpals.judges.protocol import RequestRefused
from bpals.version import VERSION

if TYPE_CHECKING:
    import aiohttp

Kind = Literal["connect", "broken", "deadline", "busy", "server", "too_long", "garbled", "error"]

BUSY = frozenset({408, 409, 425, 429})
REFUSED = frozenset({400, 411, 413, 414, 415, 422, 431, 451})

CONNECT_S = 10.0
KEPT_ALIVE_S = 4.0
"""Shorter than the 5 s after which common servers drop an idle connection: ours is never the stale one."""

SAID_BYTES = 65_536
SAID_CHARACTERS = 300
LARGE_BODY = 2**20
"""aiohttp warns of whole bodies beyond this size; larger ones go out in slices."""

ENCODED = re.compile(r"[A-Za-z0-9+/=_-]{48,}")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to ask, with which key, and how long and how much to listen."""

    url: str
    """The base URL as a user types it, such as http://127.0.0.1:8000/v1."""
    key: str = field(default="", repr=False)
    """Sent to this origin only."""
    ca_file: str | None = None
    """A file with the certificates to believe instead of the system's."""
    deadline_s: float = 120.0
    """For the whole exchange, from connecting to the last byte."""
    max_bytes: int = 4_000_000
    """Of a reply, as it comes and unpacked."""
    allow: tuple[str, ...] = ()
    """Hosts that may be private, or asked without TLS, because the user says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A reply: the JSON object that came back."""

    status: int
    payload: Mapping[str, Any]
    latency_s: float


class Passing(Exception):
    """A fault that asking again may cure."""

    def __init__(
        self, kind: Kind, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """Keep what is needed to count the fault and to wait as told."""
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What every request to one endpoint has in common."""

    address: Address
    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool


class Wire:
    """The connections of a run: use it as an async context manager."""

    def __init__(self, *, resolve: Resolve | None = None) -> None:
        """Open nothing yet; `resolve` stands in for the system's name service."""
        self._resolver = CheckedResolver(resolve or resolve_by_system)
        self._prepared: dict[Endpoint, Prepared] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            import aiohttp  # noqa: PLC0415
            import orjson  # noqa: F401, PLC0415
        except ImportError:
            raise MissingExtra.of("a judge behind an endpoint", "vlm") from None
        resolver: Any = self._resolver
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEPT_ALIVE_S, resolver=resolver, socket_factory=self._resolver.open_socket
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()

    def prepare(self, endpoint: Endpoint) -> Prepared:
        """Read an endpoint's address, key and certificates once; raises JudgeError if they cannot be used."""
        prepared = self._prepared.get(endpoint)
        if prepared is None:
            address = Address.read(endpoint.url, allow=endpoint.allow)
            prepared = self._prepared[endpoint] = Prepared(
                address=address,
                url=f"{address.origin}{address.path}/chat/completions",
                headers=headers_of(endpoint, address),
                tls=certificates(endpoint.ca_file) if address.scheme == "https" else True,
            )
            self._resolver.trust(address)
        return prepared

    async def exchange(self, endpoint: Endpoint, body: bytes) -> Exchange:
        """Send one request and give the JSON object that comes back; see the module for the three ends of a fault."""
        import aiohttp  # noqa: PLC0415

        prepared = self.prepare(endpoint)
        started = time.perf_counter()
        fault: Exception
        try:
            async with asyncio.timeout(endpoint.deadline_s) as deadline:
                status, headers, raw = await self._send(prepared, body, endpoint.max_bytes)
        except TimeoutError:
            kind: Kind = "deadline" if deadline.expired() else "connect"
            within = endpoint.deadline_s if deadline.expired() else CONNECT_S
            fault = Passing(kind, f"{prepared.address.origin} did not finish within {within:g} s")
        except aiohttp.ClientSSLError as error:
            fault = tls_fault(error, prepared.address)
        except (aiohttp.ClientError, OSError) as error:
            kind = "connect" if isinstance(error, aiohttp.ClientConnectorError) else "broken"
            fault = Passing(
                kind, f"{prepared.address.origin}: {said(f'{error}', endpoint.key) or type(error).__name__}"
            )
        else:
            if status < 300:
                return Exchange(
                    status=status, payload=parse(raw, endpoint.key), latency_s=time.perf_counter() - started
                )
            fault = status_fault(status, headers, raw, endpoint, prepared)
        # Raised out here so that no exception of the client, which knows the headers and so the key, hangs on to it.
        raise fault

    async def _send(self, prepared: Prepared, body: bytes, limit: int) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request and read what comes back, whole if it is a reply and the beginning if it is a fault."""
        if self._session is None:
            raise RuntimeError("a Wire is used inside `async with`")
        data: bytes | AsyncIterator[memoryview] = body
        headers = prepared.headers
        if len(body) > LARGE_BODY:
            data, headers = slices(body), {**headers, "Content-Length": str(len(body))}
        request = self._session.post(prepared.url, data=data, headers=headers, ssl=prepared.tls, allow_redirects=False)
        async with request as response:
            if response.status < 300:
                raw = await read_reply(response, limit)
            else:
                raw = await read_fault(response)
            return response.status, response.headers, raw


def headers_of(endpoint: Endpoint, address: Address) -> dict[str, str]:
    """Write the headers of every request, the key among them."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": f"bpals/{VERSION}",
    }
    if endpoint.key:
        if not re.fullmatch(r"[!-~]+", endpoint.key):
            raise JudgeError(
                f"the key for {address.origin} has a blank or a character that no header carries: set it anew."
            )
        headers["Authorization"] = f"Bearer {endpoint.key}"
    return headers


def certificates(ca_file: str | None) -> ssl.SSLContext:
    """Say which certificates are believed."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise JudgeError(f"CA file {ca_file!r} cannot be read ({error}): give a PEM file of certificates.") from None


async def slices(body: bytes) -> AsyncIterator[memoryview]:
    """Hand out a large body piece by piece."""
    view = memoryview(body)
    for at in range(0, len(body), LARGE_BODY):
        yield view[at : at + LARGE_BODY]


async def read_reply(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a reply up to the limit, packed and unpacked."""
    announced = response.content_length or 0
    if "event-stream" in response.headers.get("Content-Type", ""):
        raise Passing("garbled", "the server streams events although none were asked for", status=response.status)
    pieces, size = [], 0
    while announced <= limit and (piece := await response.content.readany()):
        pieces.append(piece)
        size += len(piece)
        announced = max(announced, size)
    if announced > limit:
        raise Passing("too_long", f"the reply is longer than {limit} bytes", status=response.status)
    raw = b"".join(pieces)
    packing = response.headers.get("Content-Encoding", "identity").lower()
    return raw if packing == "identity" else unpack(raw, packing, limit)


def unpack(raw: bytes, packing: str, limit: int) -> bytes:
    """Unpack gzip or deflate, never beyond the limit; several packed pieces in a row are not worth their risk."""
    if packing not in {"gzip", "x-gzip", "deflate"}:
        raise Passing("garbled", "the reply is packed in a way that was not asked for")
    stream = zlib.decompressobj(wbits=47)
    try:
        unpacked = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        raise Passing("garbled", f"the reply cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise Passing("too_long", f"the reply is longer than {limit} bytes when unpacked")
    if not stream.eof or stream.unused_data:
        raise Passing("broken", "the packed reply ends too early or too late")
    return unpacked


async def read_fault(response: aiohttp.ClientResponse) -> bytes:
    """Read the beginning of what a server says about a fault; the status stands without it."""
    import aiohttp  # noqa: PLC0415

    said_so_far = b""
    try:
        while len(said_so_far) < SAID_BYTES and (piece := await response.content.readany()):
            said_so_far += piece
    except aiohttp.ClientError:
        pass
    return said_so_far[:SAID_BYTES]


def parse(raw: bytes, key: str) -> Mapping[str, Any]:
    """Read the JSON object of a reply; what is none, or means an error under a 200, is asked for again."""
    import orjson  # noqa: PLC0415

    try:
        payload = orjson.loads(raw)
    except orjson.JSONDecodeError:
        begin = said(raw[:SAID_BYTES].decode("utf-8", "replace"), key)[:100]
        raise Passing("garbled", f"the reply is not JSON: {begin!r}" if begin else "the reply is empty") from None
    if not isinstance(payload, dict):
        raise Passing("garbled", f"the reply is JSON but no object: {said(f'{payload}', key)[:100]!r}")
    if error := payload.get("error"):
        raise Passing("error", f"the reply says 200 and holds an error: {said(f'{error}', key)}")
    return payload


def status_fault(
    status: int, headers: Mapping[str, str], raw: bytes, endpoint: Endpoint, prepared: Prepared
) -> Exception:
    """Say what a status other than 200 means: who must act."""
    origin, words = prepared.address.origin, said(message_of(raw), endpoint.key)
    words = f"{status}: {words}" if words else f"{status}"
    if status in BUSY or status >= 500:
        kind: Kind = "busy" if status in BUSY else "server"
        return Passing(kind, f"{origin} said {words}", status=status, retry_after_s=retry_after(headers))
    if status in REFUSED:
        return RequestRefused(status, words.partition(": ")[2] or "the server did not say why")
    if status < 400:
        where = said(headers.get("Location", "nowhere"), endpoint.key)
        return JudgeError(
            f"{prepared.url} redirects to {where} ({status}), and films are not sent on: type the final URL."
        )
    if status in {401, 403}:
        return JudgeError(f"{origin} refused the key ({words}): type export BPALS_API_KEY=... with the right one.")
    return JudgeError(
        f"{prepared.url} cannot be asked ({words}): check --base-url, which often ends in /v1, and the model."
    )


def tls_fault(error: aiohttp.ClientSSLError, address: Address) -> JudgeError:
    """Say what is wrong with a certificate; a connection that is cut in the handshake does not come here."""
    cause = getattr(error, "certificate_error", None) or error.os_error
    why = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(cause).__name__
    return JudgeError(f"{address.origin} has no TLS to be trusted ({why}): mend its certificate or give its CA file.")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long the server wants us to wait: seconds, a date, or None if it is neither."""
    asked = headers.get("Retry-After", "").strip()
    try:
        seconds = float(asked)
    except ValueError:
        until, now = moment(asked), moment(headers.get("Date", ""))
        seconds = math.nan if until is None else until - (time.time() if now is None else now)
        seconds = max(seconds, 0.0)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def moment(date: str) -> float | None:
    """Read an HTTP date as seconds since 1970."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def message_of(raw: bytes) -> str:
    """Find the sentence in an error's body: {"error": {"message": ...}}, {"detail": ...}, or the text itself."""
    import orjson  # noqa: PLC0415

    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else orjson.dumps(found).decode()


def said(text: str, key: str = "") -> str:
    """Quote a server: one line of at most 300 characters, without the key or anything encoded."""
    if key:
        text = re.sub(re.escape(key[:8]) + (r"\S*" if len(key) > 8 else ""), "***", text)
    plain = UNPRINTABLE.sub(" ", ENCODED.sub("...", text)).strip()
    return plain if len(plain) <= SAID_CHARACTERS else plain[: SAID_CHARACTERS - 3] + "..."
