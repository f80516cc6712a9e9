"""OIDC against a real provider over HTTP: who is let in, and the ways in which nobody is."""

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from bpals.errors import UnknownName, UsageError
from bpals.room.people.oidc import OidcFailed, OidcSettings, Provider, invitation_of, load_oidc, subject_of
from bpals.room.web.entrance import Entrance
from world import oidc_server, rooms


@pytest.fixture(scope="module")
def running():
    """The provider, for the whole file."""
    with oidc_server.running() as provider:
        yield provider


@pytest.fixture
def provider(running):
    """The provider, telling the truth again."""
    running.claims, running.discovery, running.sign = {}, {}, running.signed
    running.person = {"sub": "person-1", "email": "Anna@Example.org", "email_verified": True}
    return running


def settings_of(provider, **more):
    """What an admin writes down."""
    usual = {"name": "Clinic", "issuer": provider.issuer, "client_id": oidc_server.CLIENT}
    return OidcSettings(**({**usual, "client_secret": oidc_server.CLIENT_SECRET} | more))


@pytest.fixture(scope="module")
def opened(running, tmp_path_factory):
    """A room that asks the provider."""
    oidc = Provider(settings_of(running), rooms.SECRET, rooms.ORIGIN)
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("oidc")), oidc=oidc) as room:
        room.account("anna")
        yield room


@pytest.fixture
def room(provider, opened):
    """The room, with one person invited by address, who has never come; nothing was tried yet."""
    accounts = opened.room.accounts
    accounts.set_subject(accounts.named("anna"), invitation_of(provider.issuer, "anna@example.org"), by="test")
    opened.app.state.entrance = Entrance()
    return opened


def go(browser, **body):
    """Go to the provider as a browser does, and give what stands in the address it sends back to."""
    sent = browser.post("/oidc", body)
    assert sent.status_code == 200
    back = httpx.get(sent.json()["next"], follow_redirects=False).headers["location"]
    assert back.startswith(f"{rooms.ORIGIN}/oidc/return?")
    query = parse_qs(urlsplit(back).query)
    page = browser.get(
        "/oidc/return?" + urlsplit(back).query, headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    )
    assert page.status_code == 200
    assert query["code"][0] not in page.text
    return {"code": query["code"][0], "state": query["state"][0]}


def test_a_person_is_let_in_whom_the_provider_vouches_for(room, provider):
    """Invited by address, bound to the provider's own name at first sight, and led to the page that was wanted."""
    visitor = room.visitor()
    assert "Log in with Clinic" in visitor.get("/login").text
    reply = visitor.post("/oidc/return", go(visitor, next="/progress"))
    assert (reply.status_code, reply.json()) == (200, {"next": "/progress"})
    assert visitor.get("/api/sessions").status_code == 200
    (card,) = room.room.accounts.cards()
    assert card.subject == subject_of(provider.issuer, "person-1")
    provider.person = {"sub": "person-1"}
    again = room.visitor()
    assert again.post("/oidc/return", go(again)).status_code == 200


def test_pkce_state_nonce_and_one_address(room, provider):
    """What goes to the provider: a challenge, a state and a nonce that are never the same, and the exact address."""
    visitor = room.visitor()
    for _ in range(2):
        go(visitor)
    first, second = provider.asked[-2:]
    for asked in (first, second):
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == f"{rooms.ORIGIN}/oidc/return"
        assert asked["scope"] == "openid email"
    for name in ("state", "nonce", "code_challenge"):
        assert first[name] != second[name]
        assert len(first[name]) >= 43


def test_a_code_works_once(room):
    """And only in the browser that asked for it."""
    visitor = room.visitor()
    back = go(visitor)
    thief = room.visitor()
    assert thief.post("/oidc/return", back).status_code == 401
    assert visitor.post("/oidc/return", back | {"state": "another"}).status_code == 401
    assert visitor.post("/oidc/return", back).status_code == 200
    assert visitor.post("/oidc/return", back).status_code == 401


LIES = {
    "another nonce": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "another audience": {"aud": "another client"},
    "several audiences": {"aud": [oidc_server.CLIENT, "another"]},
    "another party": {"azp": "another"},
    "another issuer": {"iss": "https://evil.example"},
    "over": {"exp": 1_000_000_000},
    "not yet": {"iat": 4_000_000_000, "nbf": 4_000_000_000},
    "no end": {"exp": None},
    "nobody": {"sub": None},
    "an empty name": {"sub": ""},
    "a name that is no text": {"sub": 7},
    "a name that no database keeps": {"sub": "nul\x00"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_token_that_does_not_hold_lets_nobody_in(room, provider, lie):
    """Every claim is checked, and the reply is always the same."""
    visitor = room.visitor()
    provider.claims = LIES[lie]
    reply = visitor.post("/oidc/return", go(visitor))
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "oidc")
    assert visitor.get("/api/sessions").status_code == 401


@pytest.mark.parametrize("how", ["signed_by_another", "signed_with_the_public_key", "unsigned"])
def test_a_signature_that_does_not_hold_lets_nobody_in(room, provider, how):
    """Another's key, the public key taken for a secret, no signature at all."""
    provider.sign = getattr(provider, how)
    visitor = room.visitor()
    assert visitor.post("/oidc/return", go(visitor)).status_code == 401


@pytest.mark.parametrize(
    "person",
    [
        {"sub": "stranger", "email": "stranger@example.org", "email_verified": True},
        {"sub": "stranger", "email": "anna@example.org", "email_verified": False},
        {"sub": "stranger", "email": "anna@example.org", "email_verified": "true"},
        {"sub": "stranger", "email": "anna@example.org"},
        {"sub": "stranger"},
    ],
)
def test_who_was_not_invited_is_told_so(room, provider, person):
    """Nobody gets an account by logging in; an address that the provider did not verify is no address."""
    provider.person = person
    visitor = room.visitor()
    reply = visitor.post("/oidc/return", go(visitor))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "oidc")
    assert len(room.room.accounts.cards()) == 1


def test_a_provider_that_is_not_what_it_says_is_not_believed(provider):
    """Another issuer, an address without TLS, nobody there: told as one word for the log."""
    for lie, code in (
        ({"issuer": "https://evil.example"}, "issuer"),
        ({"token_endpoint": "http://evil.example/token"}, "endpoint"),
        ({"jwks_uri": "file:///etc/passwd"}, "endpoint"),
        ({"authorization_endpoint": None}, "endpoint"),
    ):
        provider.discovery = lie
        with pytest.raises(OidcFailed, match=f"^{code}$"):
            Provider(settings_of(provider), rooms.SECRET, rooms.ORIGIN).start("/read")
    gone = settings_of(provider, issuer=f"http://127.0.0.1:{rooms.free_port()}")
    with pytest.raises(OidcFailed, match="unreachable"):
        Provider(gone, rooms.SECRET, rooms.ORIGIN).start("/read")


def test_the_note_is_sealed(provider):
    """What the browser keeps meanwhile can be neither changed nor kept for long."""
    asked = Provider(settings_of(provider), rooms.SECRET, rooms.ORIGIN)
    _, sealed = asked.start("/read")
    for changed in ("", "x", sealed[:-1], f"x{sealed}", sealed.replace(".", "", 1), "\u00e9." * 3):
        with pytest.raises(OidcFailed, match="seal"):
            asked.finish(changed, "code", "state")
    with pytest.raises(OidcFailed, match="seal"):
        Provider(settings_of(provider), b"1" * 32, rooms.ORIGIN).finish(sealed, "code", "state")
    with pytest.raises(OidcFailed, match="state"):
        asked.finish(sealed, "code", "another")


def test_without_a_provider_there_is_no_such_door(tmp_path):
    """404, and no button."""
    with rooms.open_room(rooms.address_of(tmp_path)) as opened:
        visitor = opened.visitor()
        assert visitor.post("/oidc", {}).status_code == 404
        assert visitor.post("/oidc/return", {"code": "x", "state": "x"}).status_code == 404
        assert visitor.get("/oidc/return?code=x&state=x").status_code == 404
        assert "Log in with" not in visitor.get("/login").text


WRITTEN = 'issuer = "https://id.example.org"\nclient_id = "room"\nclient_secret = "words"\n'


def test_the_settings_are_read_from_a_file_of_ones_own(tmp_path):
    """S16: it holds a secret, so others may not read it."""
    path = tmp_path / "oidc.toml"
    path.write_text(WRITTEN)
    path.chmod(0o600)
    settings = load_oidc(path)
    assert (settings.name, settings.scopes) == ("id.example.org", ("openid", "email"))
    assert "words" not in repr(settings)
    path.chmod(0o644)
    with pytest.raises(UsageError, match=r"mode 0644.*chmod 600"):
        load_oidc(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "cannot be read as TOML"),
        ('issuer = "https://id"\nclient_id = "room"', "client_secret is missing"),
        (WRITTEN.replace("https", "http"), "is not an https:// address"),
        (WRITTEN + 'scopes = ["email"]', 'with "openid" in it'),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path, text, words):
    """What is wrong, and where."""
    path = tmp_path / "oidc.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=words):
        load_oidc(path)
    path.write_text(WRITTEN + 'clientid = "x"')
    with pytest.raises(UnknownName, match="Did you mean 'client_id'"):
        load_oidc(path)
    with pytest.raises(UsageError, match="there is no file"):
        load_oidc(tmp_path / "none.toml")
