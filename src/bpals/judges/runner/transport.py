"""One HTTP request to an OpenAI-compatible endpoint: a body goes out, a JSON object comes back, or an error.

Each error says who must act:

TransientError    sending it again may help: `dispatch` does, for nothing is ever retried here
RequestRefused    the server will never take this request; it may take the next one
JudgeError        the user must correct the address, the key or the certificate first
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import math
import re
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from bpals.errors import JudgeError, MissingExtra
from bpals.judges.address import Address, CheckedResolver, Resolve, resolve_by_system
from bpals.types import RequestRefused
from bpals.version import VERSION

if TYPE_CHECKING:
    import aiohttp

Kind = Literal["connect", "broken", "deadline", "busy", "server", "too_long", "garbled", "error"]

BUSY = frozenset({408, 409, 425, 429})
REFUSED = frozenset({400, 411, 413, 414, 415, 422, 431, 451})

CONNECT_S = 10.0
# Common servers drop an idle connection after 5 s: a shorter time here never meets a stale one.
KEEP_ALIVE_S = 4.0
ERROR_BYTES = 65_536
QUOTE_CHARACTERS = 300
# aiohttp warns about whole bodies beyond this size; larger ones go out in slices.
LARGE_BODY = 2**20

ENCODED = re.compile(r"[A-Za-z0-9+/=_-]{48,}")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server, its key, and the limits on time and size of a reply."""

    url: str
    """The base URL as a user types it, such as http://127.0.0.1:8000/v1."""
    key: str = field(default="", repr=False)
    """Sent to this origin only."""
    ca_file: str | None = None
    """A file of certificates to trust instead of the system's."""
    deadline_s: float = 120.0
    """For the whole request, from connecting to the last byte."""
    max_bytes: int = 4_000_000
    """Of a reply, both compressed and decompressed."""
    allow: tuple[str, ...] = ()
    """Hosts that the user allows to be private or without TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The JSON object that came back."""

    status: int
    payload: Mapping[str, Any]
    latency_s: float


class TransientError(Exception):
    """A fault that may be gone when the request is sent again."""

    def __init__(
        self, kind: Kind, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        """Keep what is needed to count the fault and to wait as long as the server asks."""
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The parts that all requests to one endpoint share."""

    address: Address
    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool


class Transport:
    """The HTTP connections of a run: use it as an async context manager."""

    def __init__(self, *, resolve: Resolve | None = None) -> None:
        """Open nothing yet; `resolve` replaces the system's name service in tests."""
        self._resolver = CheckedResolver(resolve or resolve_by_system)
        self._prepared: dict[Endpoint, Prepared] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            import aiohttp
            import orjson  # noqa: F401
        except ImportError:
            raise MissingExtra.of("a judge behind an endpoint", "vlm") from None
        resolver: Any = self._resolver
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_ALIVE_S, resolver=resolver, socket_factory=self._resolver.open_socket
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._session:
            await self._session.close()

    def prepare(self, endpoint: Endpoint) -> Prepared:
        """Check an endpoint's address, key and certificates once; raises JudgeError if they are unusable."""
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

    async def send(self, endpoint: Endpoint, body: bytes) -> HttpResponse:
        """Send one request and return the JSON object that comes back; see the module for the three errors."""
        import aiohttp

        prepared = self.prepare(endpoint)
        started = time.perf_counter()
        fault: Exception
        try:
            # One deadline around everything: a server that sends a byte now and then never trips a read timeout.
            async with asyncio.timeout(endpoint.deadline_s) as deadline:
                status, headers, raw = await self._post(prepared, body, endpoint.max_bytes)
        except TimeoutError:
            kind: Kind = "deadline" if deadline.expired() else "connect"
            within = endpoint.deadline_s if deadline.expired() else CONNECT_S
            fault = TransientError(kind, f"{prepared.address.origin} did not finish within {within:g} s")
        except aiohttp.ClientSSLError as error:
            fault = error_of_tls(error, prepared.address)
        except (aiohttp.ClientError, OSError) as error:
            kind = "connect" if isinstance(error, aiohttp.ClientConnectorError) else "broken"
            message = quote(str(error), endpoint.key) or type(error).__name__
            fault = TransientError(kind, f"{prepared.address.origin}: {message}")
        else:
            if status < 300:
                return HttpResponse(
                    status=status, payload=parse(raw, endpoint.key), latency_s=time.perf_counter() - started
                )
            fault = error_of_status(status, headers, raw, endpoint, prepared)
        # Raised out here, so that it has no aiohttp exception as its context: those know the headers, and so the key.
        raise fault

    async def _post(self, prepared: Prepared, body: bytes, limit: int) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; read the whole of a reply, but only the beginning of an error."""
        if self._session is None:
            raise RuntimeError("use a Transport inside `async with`")
        data: bytes | AsyncIterator[memoryview] = body
        headers = prepared.headers
        if len(body) > LARGE_BODY:
            data, headers = slices(body), {**headers, "Content-Length": str(len(body))}
        # Redirects are refused: the key and the image go to the address that the user typed, and nowhere else.
        request = self._session.post(prepared.url, data=data, headers=headers, ssl=prepared.tls, allow_redirects=False)
        async with request as response:
            reading = read_reply(response, limit) if response.status < 300 else read_error(response)
            return response.status, response.headers, await reading


def headers_of(endpoint: Endpoint, address: Address) -> dict[str, str]:
    """Build the headers of every request, including the key."""
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
    """Load the certificates to trust."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise JudgeError(f"CA file {ca_file!r} cannot be read ({error}): give a PEM file of certificates.") from None


async def slices(body: bytes) -> AsyncIterator[memoryview]:
    """Yield a large body piece by piece."""
    view = memoryview(body)
    for at in range(0, len(body), LARGE_BODY):
        yield view[at : at + LARGE_BODY]


async def read_reply(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a reply up to the limit, which holds before and after decompression."""
    announced = response.content_length or 0
    if "event-stream" in response.headers.get("Content-Type", ""):
        raise TransientError(
            "garbled", "the server streams events although none were asked for", status=response.status
        )
    pieces, size = [], 0
    while announced <= limit and (piece := await response.content.readany()):
        pieces.append(piece)
        size += len(piece)
        announced = max(announced, size)
    if announced > limit:
        raise TransientError("too_long", f"the reply is longer than {limit} bytes", status=response.status)
    raw = b"".join(pieces)
    packing = response.headers.get("Content-Encoding", "identity").lower()
    return raw if packing == "identity" else unpack(raw, packing, limit)


def unpack(raw: bytes, packing: str, limit: int) -> bytes:
    """Decompress gzip or deflate, never beyond the limit."""
    if packing not in {"gzip", "x-gzip", "deflate"}:
        raise TransientError("garbled", "the reply is packed in a way that was not asked for")
    stream = zlib.decompressobj(wbits=47)
    try:
        unpacked = stream.decompress(raw, limit + 1)
    except zlib.error as error:
        raise TransientError("garbled", f"the reply cannot be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise TransientError("too_long", f"the reply is longer than {limit} bytes when unpacked")
    # Several compressed members in a row are legal and never seen: refusing them keeps the limit simple.
    if not stream.eof or stream.unused_data:
        raise TransientError("broken", "the packed reply ends too early or too late")
    return unpacked


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Read the beginning of an error's body; the status counts even without it."""
    import aiohttp

    received = b""
    with contextlib.suppress(aiohttp.ClientError):
        while len(received) < ERROR_BYTES and (piece := await response.content.readany()):
            received += piece
    return received[:ERROR_BYTES]


def parse(raw: bytes, key: str) -> Mapping[str, Any]:
    """Parse a reply; a body that is no JSON object, or an error sent with status 200, is a transient fault."""
    import orjson

    try:
        payload = orjson.loads(raw)
    except orjson.JSONDecodeError:
        begin = quote(raw[:ERROR_BYTES].decode("utf-8", "replace"), key)[:100]
        raise TransientError(
            "garbled", f"the reply is not JSON: {begin!r}" if begin else "the reply is empty"
        ) from None
    if not isinstance(payload, dict):
        raise TransientError("garbled", f"the reply is JSON but no object: {quote(f'{payload}', key)[:100]!r}")
    if error := payload.get("error"):
        raise TransientError("error", f"the reply says 200 and holds an error: {quote(f'{error}', key)}")
    return payload


def error_of_status(
    status: int, headers: Mapping[str, str], raw: bytes, endpoint: Endpoint, prepared: Prepared
) -> Exception:
    """Map a status other than 200 to the error that says who must act."""
    origin, words = prepared.address.origin, quote(message_of(raw), endpoint.key)
    words = f"{status}: {words}" if words else f"{status}"
    if status in BUSY or status >= 500:
        kind: Kind = "busy" if status in BUSY else "server"
        return TransientError(kind, f"{origin} said {words}", status=status, retry_after_s=retry_after(headers))
    if status in REFUSED:
        return RequestRefused(status, words.partition(": ")[2] or "the server did not say why")
    if status < 400:
        where = quote(headers.get("Location", "nowhere"), endpoint.key)
        return JudgeError(
            f"{prepared.url} redirects to {where} ({status}), and films are not sent on: type the final URL."
        )
    if status in {401, 403}:
        return JudgeError(f"{origin} refused the key ({words}): type export BPALS_API_KEY=... with the right one.")
    return JudgeError(
        f"{prepared.url} cannot be asked ({words}): check --base-url, which often ends in /v1, and the model."
    )


def error_of_tls(error: aiohttp.ClientSSLError, address: Address) -> JudgeError:
    """Explain what is wrong with a certificate; a connection cut in the handshake is a transient fault instead."""
    cause = getattr(error, "certificate_error", None) or error.os_error
    why = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(cause).__name__
    return JudgeError(f"{address.origin} has no TLS to be trusted ({why}): mend its certificate or give its CA file.")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the Retry-After header in seconds, from a number or a date; None if it is neither."""
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        # Against the server's own clock where it sends one: the two may differ by minutes.
        until, now = moment(value), moment(headers.get("Date", ""))
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
    """Find the message in an error's body: {"error": {"message": ...}}, {"detail": ...}, or the text itself."""
    import orjson

    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else orjson.dumps(found).decode()


def quote(text: str, key: str = "") -> str:
    """Quote a server: one line of at most 300 characters, without the key and without encoded data."""
    if key:
        text = re.sub(re.escape(key[:8]) + (r"\S*" if len(key) > 8 else ""), "***", text)
    plain = UNPRINTABLE.sub(" ", ENCODED.sub("...", text)).strip()
    return plain if len(plain) <= QUOTE_CHARACTERS else plain[: QUOTE_CHARACTERS - 3] + "..."
