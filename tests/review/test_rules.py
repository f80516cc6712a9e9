"""The rules: every route and every role, and what no route does."""

import itertools
import json

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from sqlalchemy import select

from bpals.errors import ContractBroken
from bpals.room.web.app import check_rules, create_app
from bpals.room.web.guard import ANYONE, RULES
from bpals.store.ledger.schema import REVIEW_TABLES
from world import rooms

ROLES = ("nobody", "reader", "adjudicator", "admin")
FIELDS = {
    "draft": {"version": 0, "answer": {}},
    "lock": {"version": 0, "answer": {}, "spent": rooms.SPENT},
    "second": {"version": 0, "answer": {}, "spent": rooms.SPENT},
    "skip": {"version": 0},
    "undo": {"version": 0},
    "amend": {"version": 0, "answer": {}, "reason": "a slip"},
    "/login": {"name": "nobody", "password": "wrong"},
    "/enter": {"token": "x" * 43},
    "/oidc": {},
    "/oidc/return": {"code": "x", "state": "x"},
    "/password": {"old": "wrong", "new": "four plain words together"},
    "/api/adjudication/{case_id}": {"pinned": {}, "verdicts": {"Mass": {"verdict": "present", "how": "adjudicator"}}},
    "/api/rounds/{case_id}": {"round": 1, "verdicts": {"Mass": "present"}},
    "/api/accounts": {"name": "", "role": "reader"},
    "/api/accounts/{account_id}": {},
}
"""A body that each route understands; where there is none, none is sent."""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A room for the whole file."""
    with rooms.open_room(rooms.address_of(tmp_path_factory.mktemp("rules")), films=40) as opened:
        yield opened


@pytest.fixture(scope="module")
def browsers(room):
    """One browser a role; each has begun to read a case."""
    found = {"nobody": room.visitor()} | {role: room.browser(f"the {role}", role) for role in ROLES[1:]}
    for role in ROLES[1:]:
        found[role].reading = found[role].next()["reading"]
    return found


def ask(browser, method, path, **names):
    """Call a route with what it understands."""
    usual = {"reading_id": "no-such-reading", "n": 0, "case_id": 1, "account_id": 10**6, "name": "page.js"}
    address = path.format(**(usual | names))
    if method == "GET":
        return browser.get(address)
    body = FIELDS.get(path, FIELDS.get(path.rpartition("/")[2]))
    keyed = path.startswith(("/api/readings", "/api/adjudication/{", "/api/rounds/{"))
    return browser.post(address, body | {"key": rooms.fresh_key()} if keyed and body is not None else body)


@pytest.mark.parametrize(("method", "path"), sorted(RULES))
def test_s09_every_route_and_every_role(browsers, method, path):
    """S09: what the table allows passes the door, and nothing else does."""
    for role in ROLES:
        browser = browsers["nobody"] if path == "/logout" else browsers[role]
        reply = ask(browser, method, path)
        sent_away = reply.headers.get("location", "").startswith("/login")
        declined = sent_away or '"code":"login"' in reply.text or '"code":"role"' in reply.text
        assert declined == (role not in RULES[method, path]), (role, reply.status_code, reply.text[:200])
        if declined:
            assert reply.status_code == (403 if role != "nobody" else 303 if sent_away else 401)


def test_a_route_without_a_rule_does_not_open(room):
    """Whoever adds a route must say who may call it: the application refuses to start."""
    app = create_app(room.room)
    app.add_api_route("/api/everything", forgotten, methods=["GET"])
    with pytest.raises(ContractBroken, match="GET /api/everything"):
        check_rules(app)
    app = create_app(room.room)
    app.mount("/files", FastAPI())
    with pytest.raises(ContractBroken, match="files"):
        check_rules(app)
    with pytest.raises(ContractBroken, match="GET /read"):
        check_rules(FastAPI(openapi_url=None))


def forgotten():
    """A route that somebody added in a hurry."""
    return {}


def test_s09_nobody_gets_at_anothers_reading(browsers, caplog):
    """S09: no other reader, adjudicator or admin, by any route; it looks as if it were not there, and is logged."""
    mine = browsers["reader"].reading["reading_id"]
    routes = [(method, path) for method, path in RULES if "{reading_id}" in path]
    assert len(routes) >= 9
    for role, (method, path) in itertools.product(("adjudicator", "admin"), routes):
        other = ask(browsers[role], method, path, reading_id=mine)
        absent = ask(browsers[role], method, path, reading_id="no-such-reading-at-all")
        assert other.status_code == absent.status_code == 404
        assert {**other.json()["error"], "id": ""} == {**absent.json()["error"], "id": ""}
    assert [record for record in caplog.records if getattr(record, "fields", {}).get("why") == "not_yours"]
    assert browsers["reader"].get(f"/api/readings/{mine}").json()["version"] == 0


def test_s09_ids_that_are_no_ids_are_not_found(browsers):
    """S09: numbers, paths and statements in the place of an id."""
    for wrong in ("1", "-1", "0' OR '1'='1", "%00", "..", "a" * 500, "%2e%2e%2f"):
        reply = browsers["reader"].get(f"/api/readings/{wrong}")
        assert reply.status_code in {404, 422}


def test_s05_no_get_changes_anything(browsers, room):
    """S05: everything that the ledger holds is the same before and after, whoever asks."""
    before = everything(room)
    for role, (method, path) in itertools.product(ROLES, RULES):
        if method == "GET":
            reading = getattr(browsers[role], "reading", {"reading_id": "none-at-all"})
            ask(browsers[role], method, path, reading_id=reading["reading_id"], n=1)
    assert everything(room) == before
    assert len(before) > 5
    browsers["reader"].act("draft", browsers["reader"].reading, answer={"note": "a change is seen"})
    assert everything(room) != before
    browsers["reader"].reading = browsers["reader"].next()["reading"]


def everything(room):
    """Every row of every table of the room."""

    def read(connection):
        return {table.name: connection.execute(select(table)).all() for table in REVIEW_TABLES.sorted_tables}

    return room.ledger.look(read)


def test_s05_only_get_and_post_exist():
    """S05: and nothing that sounds like a change is a GET."""
    assert {method for method, _ in RULES} == {"GET", "POST"}
    changing = {"draft", "lock", "second", "skip", "undo", "amend", "logout", "password", "link", "end-others", "next"}
    assert not [path for method, path in RULES if method == "GET" and path.rpartition("/")[2] in changing]


@pytest.mark.parametrize(
    "more",
    [
        {"role": "admin"},
        {"locked": False},
        {"state": "done"},
        {"account_id": 1},
        {"answer": {"verdicts": {}, "reader": "somebody else"}},
        {"answer": {"verdicts": {"Mass": "present"}, "saw_signal": 0}},
        {"version": "0"},
        {"version": True},
        {"__class__": "x"},
    ],
)
def test_s10_a_field_that_nobody_knows_is_refused(browsers, more):
    """S10: nothing is assigned that the shape does not name, and no type is guessed."""
    reader = browsers["reader"]
    body = {"version": reader.reading["version"], "key": rooms.fresh_key(), "answer": {}} | more
    assert reader.post(f"/api/readings/{reader.reading['reading_id']}/draft", body).status_code == 422
    assert reader.get(f"/api/readings/{reader.reading['reading_id']}").json()["version"] == reader.reading["version"]


def test_s10_nobody_makes_himself_an_admin(browsers, room):
    """S10: neither at login nor with a password nor through the office."""
    room.account("climber", password=rooms.PASSWORD)
    climber = room.visitor()
    body = {"name": "climber", "password": rooms.PASSWORD}
    assert climber.post("/login", body | {"role": "admin"}).status_code == 422
    assert climber.post("/login", body).status_code == 200
    account = room.room.accounts.named("climber").account_id
    assert climber.post(f"/api/accounts/{account}", {"role": "admin"}).status_code == 403
    assert climber.post("/api/accounts", {"name": "x", "role": "admin"}).status_code == 403
    owner = {"role": "owner"}
    assert browsers["admin"].post(f"/api/accounts/{account}", owner).status_code == 422
    assert browsers["admin"].post(f"/api/accounts/{account}", {"password": "$argon2id$"}).status_code == 422
    assert room.room.accounts.named("climber").role == "reader"


@pytest.mark.parametrize("query", ["sort=password", "sort=totp", "filter=name", "sort=name&sort=role", "limit=1", "x"])
def test_s11_sorting_by_an_unlisted_field_is_refused(browsers, query):
    """S11: a closed list, so that no order tells anything about a hash."""
    assert browsers["admin"].get(f"/api/accounts?{query}").status_code == 422


def test_s11_nothing_else_can_be_asked_for(browsers):
    """S11: a route takes the query that the table names, and mostly that is none; what lets one in is never listed."""
    for path in (
        "/api/progress",
        "/api/sessions",
        "/read",
        f"/api/readings/{browsers['reader'].reading['reading_id']}",
    ):
        assert browsers["reader"].get(f"{path}?order_by=trust").status_code == 422
    listed = browsers["admin"].get("/api/accounts?sort=role")
    assert listed.status_code == 200
    assert set(listed.json()["accounts"][0]) == {
        "account_id", "name", "role", "password", "totp", "subject", "disabled", "at",
    }  # fmt: skip
    assert "argon2" not in listed.text
    assert all(isinstance(account["password"], bool) for account in listed.json()["accounts"])


@pytest.mark.parametrize(
    "after",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/%2f%2fevil.example",
        "javascript:alert(1)",
        "/read/../../evil",
        "/read\r\nSet-Cookie: x=1",
        "/login",
        "read",
    ],
)
def test_s18_next_leads_to_pages_of_ours_only(room, after):
    """S18: after the login, and in the login page itself."""
    page = room.visitor().client.get("/login", params={"next": after})
    assert 'name="next" value="/read"' in page.text
    assert "evil" not in page.text
    if not [card for card in room.room.accounts.cards() if card.account.name == "goer"]:
        room.account("goer", password=rooms.PASSWORD)
    reply = room.visitor().post("/login", {"name": "goer", "password": rooms.PASSWORD, "next": after})
    assert reply.json() == {"next": "/read"}
    assert reply.headers["hx-redirect"] == "/read"


def test_a_stranger_is_sent_to_the_login_page_and_back(room):
    """A page asked for by name is where he lands."""
    room.account("traveller", password=rooms.PASSWORD)
    reply = room.visitor().get("/progress")
    assert (reply.status_code, reply.headers["location"]) == (303, "/login?next=/progress")
    visitor = room.visitor()
    body = {"name": "traveller", "password": rooms.PASSWORD, "next": "/progress"}
    assert visitor.post("/login", body).json() == {"next": "/progress"}
    assert visitor.get("/progress").status_code == 200


def test_s17_whatever_is_sent_nothing_breaks(room, browsers):
    """S17: made-up requests of every shape to every route: no 5xx, and nothing for strangers but what is for anyone."""
    schema = schemathesis.openapi.from_dict(room.app.openapi())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in operations} == set(RULES)
    room.app.state.entrance.by_address._most = room.app.state.entrance.by_account._most = 10**6
    for operation in operations:
        rule = RULES[operation.method.upper(), operation.path]
        if operation.path != "/logout":
            bombard(operation, browsers["nobody"], rule)
            bombard(operation, browsers["admin"], rule, reading=browsers["admin"].reading["reading_id"])


def bombard(operation, browser, rule, reading=None):
    """Send some made-up requests."""

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=4, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    def send(case):
        path = case.formatted_path
        if reading and "{reading_id}" in operation.path:
            path = operation.path.format(reading_id=reading, n=case.path_parameters.get("n", 0))
        body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
        content = {} if body is None else {"content": json.dumps(body).encode("utf-8", "replace")}
        headers = {"origin": browser.origin, "content-type": "application/json"}
        reply = browser.client.request(
            operation.method.upper(), path, params=dict(case.query or {}), headers=headers, follow_redirects=False,
            **content,
        )  # fmt: skip
        assert reply.status_code < 500, (path, body)
        if reading is None and rule is not ANYONE:
            assert reply.status_code in {303, 401, 404, 422}, (path, reply.status_code)

    send()
