"""People: who may enter, how they prove it, and for how long."""
