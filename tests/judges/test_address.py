"""S14: which addresses are asked, and which never are, however they are written and whatever a name resolves to."""

import asyncio
import re
import socket

import pytest

from bpals.errors import JudgeError
from bpals.judges.address import Address, CheckedResolver
from bpals.judges.runner.transport import Endpoint, TransientError, Transport
from world import chat_server

METADATA = [
    "http://169.254.169.254/latest/meta-data",
    "https://169.254.169.254/v1",
    "http://2852039166/v1",
    "http://0xa9fea9fe/v1",
    "http://0xA9.0xFE.0xA9.0xFE/v1",
    "http://0251.0376.0251.0376/v1",
    "http://169.254.43518/v1",
    "http://169.16689662/v1",
    "http://169.254.169.254./v1",
    "http://[::ffff:169.254.169.254]/v1",
    "http://[::ffff:a9fe:a9fe]/v1",
    "http://[::a9fe:a9fe]/v1",
    "http://[::ffff:0:a9fe:a9fe]/v1",
    "http://[64:ff9b::a9fe:a9fe]/v1",
    "http://[64:ff9b:1::a9fe:a9fe]/v1",
    "http://[2002:a9fe:a9fe::1]/v1",
    "http://[2001:0:a9fe:a9fe::1]/v1",
    "http://[fe80::1]/v1",
    "http://[fd00:ec2::254]/v1",
    "http://[fd20:ce::254]/v1",
    "http://100.100.100.200/v1",
    "http://192.0.0.192/v1",
    "http://168.63.129.16/v1",
    "http://metadata.google.internal/v1",
    "https://METADATA.google.internal./v1",
    "http://metadata/v1",
    "http://instance-data/v1",
]
NO_HOST = ["http://0.0.0.0:8000/v1", "http://[::]:8000/v1", "http://0/v1", "http://224.0.0.1/v1", "http://[ff02::1]/v1",
           "http://255.255.255.255/v1", "http://240.0.0.1/v1"]  # fmt: skip
UNREADABLE = [
    "", "127.0.0.1:8000/v1", "/v1", "file:///etc/passwd", "gopher://127.0.0.1:70/1", "ftp://127.0.0.1/v1",
    "http://", "http://:8000/v1", "http://./v1", "http://127.0.0.1:0/v1", "http://127.0.0.1:99999/v1",
    "http://user:word@127.0.0.1/v1", "http://127.0.0.1@evil.example/v1", "http://evil.example\\@127.0.0.1/v1",
    "http://127.0.0.1/v1?x=http://evil.example", "http://127.0.0.1/v1#a", "http://127.0.0.1 .evil.example/v1",
    "http://127.0.0.1/v1\r\nX: y", "http://①②⑦.0.0.1/v1", "http://[fe80::1%25eth0]/v1", "http://[::1/v1",
    "http://127.0.0.1%2eevil.example/v1", "javascript:alert(1)", "data:text/html,x", "unix:///tmp/x",
]  # fmt: skip


@pytest.mark.parametrize("url", METADATA + NO_HOST)
def test_a_metadata_address_is_refused_in_every_spelling(url):
    """S14: metadata, link-local and no-host addresses are refused, also where the user listed them."""
    host = re.sub(r"^https?://|/.*$", "", url.lower())
    bare = host if host.startswith("[") else host.partition(":")[0]
    for allow in ((), (bare, bare.strip("[]").rstrip("."))):
        with pytest.raises(JudgeError, match=r"never asked|number in disguise"):
            Address.read(url, allow=allow)


@pytest.mark.parametrize("url", UNREADABLE)
def test_only_plain_http_urls_are_read(url):
    """S14: other schemes, user names, and whatever two parsers could read differently are refused in one line."""
    with pytest.raises(JudgeError) as caught:
        Address.read(url, allow=("evil.example",))
    assert "\n" not in str(caught.value)
    assert "word@" not in str(caught.value)
    assert "--base-url" in str(caught.value)


@pytest.mark.parametrize("url", ["http://2130706433/v1", "http://127.1/v1", "http://0x7f000001/v1", "http://0177.0.0.1/v1",
                                 "http://1.2.3.4.5/v1", "http://example.0x1/v1", "http://010.0.0.1/v1"])  # fmt: skip
def test_a_number_in_disguise_is_refused_even_where_it_means_this_machine(url):
    """S14: decimal, hexadecimal, octal and short forms are not guessed at."""
    with pytest.raises(JudgeError, match="number in disguise"):
        Address.read(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://LOCALHOST:8000/v1/",
                                 "http://[::1]:8000/v1", "http://[::ffff:127.0.0.1]:8000/v1", "http://127.9.8.7:8000",
                                 "https://localhost/v1", " http://127.0.0.1:8000/v1 "])  # fmt: skip
def test_this_machine_may_be_asked_without_tls(url):
    """A server on the own machine is the usual case and needs no option."""
    address = Address.read(url)
    assert address.local
    assert not address.listed
    assert not address.path.endswith("/")


def test_a_public_host_needs_tls():
    """A film does not travel unencrypted unless the user says so."""
    assert Address.read("https://api.example.com/v1").origin == "https://api.example.com:443"
    with pytest.raises(JudgeError, match=r"--allow-host api\.example\.com"):
        Address.read("http://api.example.com/v1")
    assert Address.read("http://API.example.com./v1", allow=("api.EXAMPLE.com",)).listed


@pytest.mark.parametrize("host", ["10.0.0.7", "192.168.1.5", "172.16.0.1", "100.64.0.1", "[fd12:3456::1]", "198.18.0.1",
                                  "[::ffff:10.0.0.7]", "[64:ff9b::a00:7]", "[2002:a00:7::1]"])  # fmt: skip
def test_a_private_address_must_be_listed(host):
    """S14: private addresses, wrapped or not, only by --allow-host, with TLS or without."""
    for scheme in ("http", "https"):
        with pytest.raises(JudgeError, match="--allow-host"):
            Address.read(f"{scheme}://{host}:8000/v1")
        assert Address.read(f"{scheme}://{host}:8000/v1", allow=(host,)).listed


@pytest.mark.parametrize("number", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_a_name_may_resolve_to_a_public_address(number):
    """What a public name stands for is asked."""
    Address.read("https://api.example.com/v1").check(number)


@pytest.mark.parametrize("number", ["127.0.0.1", "::1", "10.0.0.7", "169.254.169.254", "fe80::1%eth0", "224.0.0.1",
                                    "::ffff:127.0.0.1", "::", "100.64.0.1", "fd00:ec2::254"])  # fmt: skip
def test_a_public_name_may_not_stand_for_a_hidden_address(number):
    """S14: a name of somebody else that resolves to this machine or its network is a trick."""
    with pytest.raises(JudgeError, match=r"api\.example\.com \("):
        Address.read("https://api.example.com/v1").check(number)


def test_localhost_must_be_this_machine():
    """A resolver that sends localhost elsewhere would get the films without TLS."""
    with pytest.raises(JudgeError, match="should be this machine"):
        Address.read("http://localhost:8000/v1").check("8.8.8.8")


def ask(url, resolve, *, times=1, **options):
    """Ask an endpoint several times at once through a name service of ours, and give what came of each."""

    async def run():
        async with Transport(resolve=resolve) as transport:
            endpoint = Endpoint(url=url, key="sk-canary-7f3a", deadline_s=5, **options)
            asked = (transport.send(endpoint, b"{}") for _ in range(times))
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(run())


def resolver(*answers):
    """A name service that gives one list of addresses after the other, and then the last for good."""
    left = list(answers)

    async def resolve(host, port):  # noqa: ARG001
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def test_a_name_that_is_bound_anew_is_refused_at_connect():
    """S14: the first resolution is harmless, the second points to the metadata service: nothing is connected to."""
    with chat_server.FaultyServer() as server:
        url = f"http://judge.test:{server.port}/v1"
        rebinding = resolver(["127.0.0.1"], ["169.254.169.254"])
        assert ask(url, rebinding, allow=("judge.test",))[0].status == 200
        refused = ask(url, rebinding, allow=("judge.test",))[0]
        assert isinstance(refused, JudgeError)
        assert "judge.test (169.254.169.254)" in str(refused)
        assert server.seen.connections == 1


@pytest.mark.parametrize("numbers", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "169.254.169.254"]])
def test_one_bad_address_among_several_refuses_the_name(numbers):
    """S14: a name with a good and a bad address is not tried until the bad one is hit; many at once are told alike."""
    with chat_server.FaultyServer() as server:
        refused = ask(f"https://judge.test:{server.port}/v1", resolver(numbers), times=8)
        assert {type(error) for error in refused} == {JudgeError}
        assert server.seen.connections == 0


def test_a_name_without_an_address_is_a_passing_fault():
    """A name service that is down for a moment does not end a run."""

    async def unknown(host, port):  # noqa: ARG001
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for resolve in (unknown, resolver([])):
        failed = ask("https://judge.test/v1", resolve)[0]
        assert isinstance(failed, TransientError)
        assert failed.kind == "connect"


def test_no_socket_is_opened_to_an_address_that_was_not_checked():
    """S14: the last look, when the socket is made: only what was checked is connected to."""
    checked = CheckedResolver(resolver(["127.0.0.1"]))
    checked.trust(Address.read("http://127.0.0.1:8000/v1"))
    checked.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 8000))).close()
    with pytest.raises(JudgeError, match=r"127\.0\.0\.2 was not checked"):
        checked.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.2", 8000)))
