"""A package that brings bpals a judge, a source and an export format."""
