"""The store: what is kept on disk or in a database."""
