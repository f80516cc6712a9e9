"""The desk: a study at work, over the ledger and without a browser.

study.py         the settings of a study                 hotkeys.py   one key a finding
desk.py          all that can be asked of a desk          views.py     what it hands over
tx.py       one transaction at it                    account.py   who is there
answer.py        what a reader writes                     bounds.py    what can be kept of it
drawing.py       films become cases                       assignment.py, floors.py, emptiness.py   who reads what next
readings.py      a reading in the ledger                  acts.py      what a reader does with it
settling.py      when all have read a case                adjudication.py, discussion.py   how they come to agree
consensus.py     what the reads come to                   counts.py    how far a study is
testimony.py     what was said, for good                  chain.py     the log, hashed
"""
