"""The rules: who may call which route. A route that is not in the table does not open.

A page that needs an account sends a stranger to the login page; a route under /api answers 401.
"""

from __future__ import annotations

from collections.abc import Mapping

from bpals.review.desk.account import Account
from bpals.review.desk.study import Study

ANYONE = frozenset({"nobody", "reader", "adjudicator", "admin"})
READERS = frozenset({"reader", "adjudicator", "admin"})
JUDGES_OF_READERS = frozenset({"adjudicator", "admin"})
ADMINS = frozenset({"admin"})

RULES: Mapping[tuple[str, str], frozenset[str]] = {
    ("GET", "/healthz"): ANYONE,
    ("GET", "/static/{name}"): ANYONE,
    ("GET", "/login"): ANYONE,
    ("POST", "/login"): ANYONE,
    ("GET", "/enter"): ANYONE,
    ("POST", "/enter"): ANYONE,
    ("POST", "/oidc"): ANYONE,
    ("GET", "/oidc/return"): ANYONE,
    ("POST", "/oidc/return"): ANYONE,
    ("POST", "/logout"): ANYONE,
    ("POST", "/password"): READERS,
    ("GET", "/"): READERS,
    ("GET", "/read"): READERS,
    ("GET", "/progress"): READERS,
    ("GET", "/adjudicate"): READERS,
    ("GET", "/account"): READERS,
    ("POST", "/api/next"): READERS,
    ("POST", "/api/bring-back"): READERS,
    ("GET", "/api/readings"): READERS,
    ("GET", "/api/readings/{reading_id}"): READERS,
    ("POST", "/api/readings/{reading_id}/draft"): READERS,
    ("POST", "/api/readings/{reading_id}/lock"): READERS,
    ("POST", "/api/readings/{reading_id}/second"): READERS,
    ("POST", "/api/readings/{reading_id}/skip"): READERS,
    ("POST", "/api/readings/{reading_id}/undo"): READERS,
    ("POST", "/api/readings/{reading_id}/amend"): READERS,
    ("POST", "/api/readings/{reading_id}/reveal"): READERS,
    ("GET", "/api/readings/{reading_id}/films/{n}"): READERS,
    ("POST", "/api/rounds/next"): READERS,
    ("POST", "/api/rounds/{case_id}"): READERS,
    ("GET", "/api/rounds/{case_id}/films/{n}"): READERS,
    ("POST", "/api/adjudication/next"): JUDGES_OF_READERS,
    ("POST", "/api/adjudication/{case_id}"): JUDGES_OF_READERS,
    ("GET", "/api/adjudication/{case_id}/films/{n}"): JUDGES_OF_READERS,
    ("GET", "/api/progress"): READERS,
    ("GET", "/api/sessions"): READERS,
    ("POST", "/api/sessions/end-others"): READERS,
    ("GET", "/api/accounts"): ADMINS,
    ("POST", "/api/accounts"): ADMINS,
    ("POST", "/api/accounts/{account_id}"): ADMINS,
    ("POST", "/api/accounts/{account_id}/link"): ADMINS,
}
QUERIES: Mapping[str, frozenset[str]] = {
    "/login": frozenset({"next"}),
    "/static/{name}": frozenset({"v"}),
    "/api/accounts": frozenset({"sort"}),
    "/oidc/return": frozenset(
        {"code", "state", "iss", "session_state", "error", "error_description", "error_uri", "scope"}
    ),
}
"""What may stand behind the ? of a route; everywhere else nothing may."""

PAGES_AFTER_LOGIN = ("/read", "/adjudicate", "/progress", "/account")
"""Where one may be sent after logging in."""


def first_page(account: Account, study: Study) -> str:
    """Say where somebody goes who asked for nothing: to be handed a case, an adjudicator asks for it."""
    return "/adjudicate" if account.role == "adjudicator" and study.settles else PAGES_AFTER_LOGIN[0]
