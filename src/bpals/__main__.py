"""`python -m bpals` is `bpals`."""

from bpals.cli.main import run

if __name__ == "__main__":
    run()
