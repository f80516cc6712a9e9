"""The desk: a study at work, over the ledger and without a browser."""
