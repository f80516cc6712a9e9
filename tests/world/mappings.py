"""Mappings as text: one column per finding, and a list of labels in one cell."""

COLUMNS = """
[columns]
image = "file"
patient = "who"
order = "visit"
age = "age"
sex = "sex"
view = "view"

[labels]
layout = "columns"
audited = ["Mass", "Edema"]

[values]
present = ["1", "yes"]
absent = 0
uncertain = -1
"""
HEADER = "file,who,visit,age,sex,view,Mass,Edema\n"
LIST = """
[columns]
image = "file"

[labels]
layout = "list"
column = "labels"
delimiter = "|"
no_finding = "normal"
silent_if = ["unchanged"]
unlisted = "absent"
audited = ["Mass", "Edema"]
"""
