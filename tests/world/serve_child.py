"""A process that serves a ledger's file as the reading room does, to be killed: python serve_child.py FILE."""

import sys

from bpals.store.ledger import Ledger
from bpals.store.ledger.relay import serving


def main(path):
    """Be the only writer until the other side closes the pipe."""
    with Ledger.open(path) as ledger, serving(ledger):
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
