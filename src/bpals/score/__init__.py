"""Scores: how well a signal finds the labels that experts reject, and how well judges tell findings."""
