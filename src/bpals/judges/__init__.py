"""Judges: each answers whether a finding is present, without seeing the label that it judges."""
