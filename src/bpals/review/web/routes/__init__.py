"""The routes: each takes what the door let in, calls the desk, and sends what `payloads` allows."""
