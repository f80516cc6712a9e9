"""Background: heavy work that no reader waits for."""
