"""Trust against radiologists: what experts said, and how well a signal finds the labels they reject."""
