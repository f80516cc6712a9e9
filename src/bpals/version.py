"""The version of this package: the packaging, the run record and `bpals --version` read it here."""

VERSION = "0.6.0.dev0"
