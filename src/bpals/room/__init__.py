"""The reading room: experts read the doubtful films, blind first; their verdicts are kept and flow back into trust.

room.py         what the pages work with, handed in by whoever opens the room
background.py   heavy work beside the readers: learning, and the numbers of the progress page
desk/           the study, its cases and readings: who reads what, the lock, how readers come to agree
people/         accounts, sessions, passwords, OIDC
web/            the application: guard, routes, pages, scripts
"""
