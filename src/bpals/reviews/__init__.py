"""Reviews: what people said of the labels, read from any file, settled, compared and exported."""
