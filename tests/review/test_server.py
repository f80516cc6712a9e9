"""The server itself: TLS of its own, and whose word it takes for who asks."""

import ssl

import httpx
import pytest
import trustme

from world import rooms


def test_it_speaks_tls_itself(tmp_path):
    """A reader enters over TLS; the cookie has the prefix that browsers keep to TLS, and goes back."""
    authority = trustme.CA()
    mine = authority.issue_cert("localhost")
    mine.private_key_pem.write_to_path(tmp_path / "room.key")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "room.crt")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    port = rooms.free_port()
    origin = f"https://localhost:{port}"
    files = {"certificate": tmp_path / "room.crt", "key": tmp_path / "room.key"}
    with (
        rooms.open_room(rooms.address_of(tmp_path), origin=origin) as opened,
        rooms.serving(opened.app, port, **files),
        httpx.Client(base_url=origin, verify=trust, headers={"origin": origin}) as client,
    ):
        token = opened.room.accounts.make_link(opened.account("anna"), by="test")
        assert client.post("/enter", json={"token": token}).status_code == 200
        assert [cookie.name for cookie in client.cookies.jar if cookie.secure] == ["__Host-bpals"]
        assert client.post("/api/next").json()["reading"]["case_no"] == 1
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{port}/healthz")


@pytest.mark.parametrize("trusted", [True, False])
def test_who_asks_is_what_a_trusted_proxy_says(tmp_path, trusted):
    """S08: behind a proxy each reader is limited by his own address; without one nobody chooses his address."""
    port = rooms.free_port()
    origin = f"http://127.0.0.1:{port}"
    proxy = {"behind_proxy": "127.0.0.1" if trusted else "10.9.8.7"}
    with (
        rooms.open_room(rooms.address_of(tmp_path), origin=origin) as opened,
        rooms.serving(opened.app, port, **proxy),
        httpx.Client(base_url=origin, headers={"origin": origin}) as client,
    ):
        opened.app.state.entrance.by_address._most = 3
        tried = [
            client.post("/enter", json={"token": "guess"}, headers={"x-forwarded-for": f"192.0.2.{n}"}).status_code
            for n in range(5)
        ]
    assert tried == ([401] * 5 if trusted else [401] * 3 + [429] * 2)
