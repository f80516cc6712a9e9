"""Reviews: verdicts of people on the labels, read from any file, settled, compared and exported."""
