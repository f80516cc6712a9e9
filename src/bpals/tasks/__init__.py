"""Tasks: one file per thing a user does; the only place where rooms meet."""
