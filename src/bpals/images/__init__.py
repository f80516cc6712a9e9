"""Films: an image id becomes pixels that a judge may see, or a reason why not; one film never stops a run.

shelf.py     where each film of a dataset lies, and its bytes
lending.py   single films of a shelf, for many who ask at once
survey.py    looking for films in every holder
names.py     which film a file is, by its name
holder.py    what holds films, seen as entries and a reader
folder.py    a folder
tarred.py    a tar, plain or compressed
gzipped.py   a gzipped tar, in any order
zipped.py    a zip
listing.py   what compressed tars hold, remembered
kinds.py     which kind of film a file is
prepare.py   the bytes of a file -> the PNG that a judge is shown
rendition.py the bytes of a file -> every grey value that it has, for a reader's screen
picture.py   PNG and JPEG -> 8-bit grey, or all values
png.py       a PNG, checked before it is decoded
jpeg.py      a JPEG, checked before it is decoded
dicom.py     a DICOM, checked and decoded
refused.py   how a film is refused, and the limits past which it is
reading.py   films, prepared one after another
crew.py      worker processes
worker.py    one of them
"""
