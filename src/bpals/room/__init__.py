"""The reading room: experts read the doubtful films, blind first; what they say is kept and flows back into trust.

room.py       what the pages work with, handed in by whoever opens the room
casefile.py   what is known of a film, shown after the lock only
desk/         the study, its cases and readings: who reads what, the lock, disagreement, the log
people/       accounts, sessions, passwords, OIDC
web/          the application: rules, routes, pages, canvas
background/   heavy work beside the readers: learning, the numbers of the progress page
formats/      reviews as files of other tools
"""
