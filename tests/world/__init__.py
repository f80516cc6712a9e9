"""What the tests share: datasets, servers, ledgers, rooms, and processes that can be killed."""
