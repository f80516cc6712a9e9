"""A small OIDC provider that speaks HTTP: discovery, keys, login and tokens, and the lies that a test wants of it."""

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT, CLIENT_SECRET = "bpals-room", "a secret of the client"


class SmallProvider:
    """Whoever comes to its login page is logged in as `person`."""

    def __init__(self, server):
        """Make the keys."""
        self.issuer = f"http://127.0.0.1:{server.server_port}"
        self.key = RSAKey.generate_key(2048, parameters={"kid": "1", "use": "sig", "alg": "RS256"})
        self.codes = {}
        self.asked = []
        self.person = {"sub": "person-1", "email": "Anna@Example.org", "email_verified": True}
        self.claims = {}
        """What of a token is said otherwise."""
        self.sign = self.signed
        self.discovery = {}

    def configuration(self):
        """What it publishes of itself."""
        usual = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/login",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        return usual | self.discovery

    def log_in(self, query):
        """Remember what was asked for and give the address to go back to."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        self.asked.append(query)
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form):
        """Trade a code for a token, once, if secret, address and verifier are right."""
        asked = self.codes.pop(form.get("code"), None)
        if asked is None or (form.get("client_id"), form.get("client_secret")) != (CLIENT, CLIENT_SECRET):
            return None
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (challenge, form.get("redirect_uri")) != (asked["code_challenge"], asked["redirect_uri"]):
            return None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        merged = {**claims, **self.person, **self.claims}
        said = {name: value for name, value in merged.items() if value is not None}
        return {"id_token": self.sign(said), "token_type": "Bearer", "access_token": "x"}

    def signed(self, claims):
        """Sign as it should be."""
        return jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.key)

    def signed_by_another(self, claims):
        """Sign with a key that nobody published."""
        other = RSAKey.generate_key(2048, parameters={"kid": "1"})
        return jwt.encode({"alg": "RS256", "kid": "1"}, claims, other)

    def signed_with_the_public_key(self, claims):
        """Sign with what everybody knows, as if it were a shared secret."""
        shared = OctKey.import_key(self.key.as_pem(private=False))
        return jwt.encode({"alg": "HS256"}, claims, shared, algorithms=["HS256"])

    def unsigned(self, claims):
        """Sign with nothing."""

        def part(value):
            return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

        return f"{part({'alg': 'none'})}.{part(claims)}."


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        provider, parts = self.server.provider, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/.well-known/openid-configuration":
            self.say(200, provider.configuration())
        elif parts.path == "/keys":
            self.say(200, {"keys": [provider.key.as_dict(private=False)]})
        elif parts.path == "/login":
            self.send_response(302)
            self.send_header("location", provider.log_in(query))
            self.end_headers()
        else:
            self.say(404, {})

    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        told = self.server.provider.token({name: values[0] for name, values in form.items()})
        self.say(400 if told is None else 200, told or {"error": "invalid_grant"})

    def say(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def running():
    """Run a provider."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.provider = SmallProvider(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
