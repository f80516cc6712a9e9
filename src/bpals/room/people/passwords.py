"""Passwords: hashed with argon2id, checked at the same cost whether or not there is one, refused when common."""

from __future__ import annotations

import threading
import unicodedata

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

COMMON = frozenset(
    """
    password passwort passw0rd pass passwd motdepasse contrasena contraseña senha parola wachtwoord haslo
    lozinka salasana admin administrator adminadmin root toor guest user username login logon letmein letmeinnow
    welcome willkommen bienvenue bienvenido benvenuto changeme changemenow change changeit default secret
    topsecret geheim temp temporary temppass test tester testing testtest testuser demo sample example trustno
    access master superman batman spiderman ironman starwars pokemon princess princesa princesse sunshine
    iloveyou ilove iloveu loveyou lovely loveme forever football fussball futbol baseball basketball hockey
    soccer tennis golf dragon monkey shadow michael michelle jennifer jessica jordan daniel thomas andrew joshua
    matthew robert charlie charles ashley amanda nicole hannah samantha elizabeth alexander anthony william
    jonathan christopher christian benjamin maggie buster tigger ginger pepper bailey cookie hunter ranger
    harley mustang ferrari porsche corvette mercedes yamaha honda toyota computer internet windows microsoft
    google facebook instagram linkedin samsung android iphone apple macintosh linux ubuntu server database
    oracle cisco router network security freedom whatever nothing something anything everything blink blinkone
    flower butterfly rainbow summer winter spring autumn january february march april june july august september
    october november december monday tuesday wednesday thursday friday saturday sunday hello helloworld hallo
    bonjour goodbye killer hacker ninja pirate wizard merlin gandalf matrix phoenix falcon eagle tiger lion
    panther dolphin penguin elephant chocolate banana orange cherry strawberry pineapple coffee cheese chicken
    pizza qwerty qwertyuiop qwertz azerty asdfgh asdfghjkl zxcvbn zxcvbnm abcdef abcdefg abcdefgh abcd abc
    aaaaaa xxxxxx london paris berlin madrid newyork chicago boston texas california america england germany
    france spain italy brazil canada australia india mexico china japan liverpool arsenal chelsea barcelona
    realmadrid juventus manchester united steelers cowboys yankees lakers patriots eagles packers hospital
    klinik clinic klinikum krankenhaus ziekenhuis hopital doctor doktor docteur medico medicine medical
    radiology radiologie radiologia radiologist xray xrays chestxray chest thorax lung lungs pulmonary film
    films reader reading readingroom adjudicator patient patients dicom pacs health healthcare nurse surgeon
    surgery emergency university universitat universite student professor research researcher science labels
    bpals nih chestxrayfourteen correcthorsebatterystaple correct horse battery staple thisisapassword
    thisismypassword mypassword yourpassword nopassword newpassword oldpassword password1password
    passwordpassword adminpassword rootpassword userpassword testpassword secretpassword letmeinplease openup
    opensesame sesame abracadabra hocuspocus supersecret superuser superadmin sysadmin systemadmin poweruser
    manager service support helpdesk office company business
    """.split()  # noqa: SIM905 -- as words they can be read
)


SHORTEST, LONGEST = 10, 256
AT_ONCE = 2  # hashes at one moment: each takes 32 MiB
MEMORY_KIB, PASSES = 32 << 10, 2  # what a hash costs: 32 MiB, filled twice; OWASP's least is 19 MiB, filled twice

_LOOKALIKES = str.maketrans("@4301!$5+7", "aaeoiisstt")
_ROWS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "qwertyuiop",
    "qwertzuiop",
    "azertyuiop",
    "asdfghjkl",
    "zxcvbnm",
    "qazwsxedcrfvtgbyhnujm",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik",
    "1q2w3e4r5t6y7u8i9o0p",
    "1q2w3e4r5t6z7u8i9o0p",
)
_RUNS = (*_ROWS, *(row[::-1] for row in _ROWS))


class Passwords:
    """Makes and checks hashes; any thread may ask."""

    def __init__(self) -> None:
        """Make the hash that is checked where an account has none, so that it takes as long."""
        self._hasher = PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=1)
        self._slots = threading.Semaphore(AT_ONCE)
        self._nobody = self._hasher.hash("nobody has this password")

    def hash(self, password: str) -> str:
        """Hash a password."""
        with self._slots:
            return self._hasher.hash(_plain(password))

    def fits(self, kept: str | None, password: str) -> bool:
        """Say whether a password is the one that was hashed; where there is none, it takes as long to say no."""
        with self._slots:
            try:
                self._hasher.verify(kept or self._nobody, _plain(password))
            except (VerificationError, InvalidHashError):
                return False
        return kept is not None

    def outdated(self, kept: str) -> bool:
        """Say whether a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(kept)


def objection(password: str, name: str) -> str:
    """Say why a password is not good enough, or nothing."""
    plain = _plain(password)
    folded = plain.casefold()
    objections = {
        f"it has {len(plain)} characters, and {SHORTEST} are the least": len(plain) < SHORTEST,
        f"it has {len(plain)} characters, and {LONGEST} are the most": len(plain) > LONGEST,
        "it repeats too few characters": len(set(folded)) < 4,
        "it holds the account's name": len(name) >= 3 and name.casefold() in folded,
        "it is a row of the keyboard or of the alphabet": _is_row(folded[:LONGEST]),
        "it is one of the first that anybody would guess": not COMMON.isdisjoint(
            {folded, _core(folded), _core(folded).translate(_LOOKALIKES), _core(folded.translate(_LOOKALIKES))}
        ),
    }
    return next((words for words, holds in objections.items() if holds), "")


def _plain(password: str) -> str:
    """Write a password as one text, however the keyboard composed its accents."""
    return unicodedata.normalize("NFC", password)


def _core(folded: str) -> str:
    """Leave out what people put before and after a word to make it count: digits and signs."""
    word = folded.strip("0123456789!?.,;:_-+*#$%&/()=@^~ ")
    half = len(word) // 2
    return word[:half] if half >= 4 and word[:half] == word[half:] else word


def _is_row(folded: str) -> bool:
    """Say whether nothing but two characters stands outside of runs along the keyboard or the alphabet."""
    left, taken = folded, 0
    while left:
        step = max((n for n in range(3, len(left) + 1) if any(left[:n] in row for row in _RUNS)), default=0)
        taken += step
        left = left[step or 1 :]
    return taken >= len(folded) - 2
