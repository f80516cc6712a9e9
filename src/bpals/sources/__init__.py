"""Sources: a dataset on disk becomes images and claims.

nih.py        the embedded NIH ChestX-ray14 record, or your own copy of its CSV
table.py      any multi-label table, read through a mapping
mapping.py    the mapping: which column means what, which value says what
section.py    one table of a mapping's TOML, read key by key
tablefile.py  a table on disk, refused in the words of a source
images.py     columns of a table -> one row a film
labels.py     cells of a table -> codes: what each film says of each finding
speech.py     the words of a list or of a reader -> codes
claims.py     codes -> the claims table; several readers -> one claim
"""
