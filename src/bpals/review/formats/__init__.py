"""Reviews in the formats of other tools; each file here writes one, and reads it back."""
