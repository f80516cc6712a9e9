"""Judges: who answers a claim without seeing it."""
