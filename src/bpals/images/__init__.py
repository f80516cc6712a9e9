"""Images: an image id becomes pixels that a judge may see, or a reason why not; one image never stops a run.

collection.py  where each image of a dataset lies, and its bytes
archives.py    folders, tars and zips as entries and a reader
formats.py     PNG and JPEG checked before they are decoded; every reason for a refusal, and the limits
picture.py     PNG and JPEG -> 8-bit grey, or all values
dicom.py       a DICOM, checked and decoded
prepare.py     the bytes of a file -> the PNG that a judge is shown
rendition.py   the bytes of a file -> every grey value that it has, for a reader's screen
stream.py      many images, one after another, through worker processes
worker.py      one of those processes
checks.py      what is odd about each image, among all of them
defects.py     inverted, turned and cropped images
ocr.py         words burnt into images
phantom.py     drawn chest images for a trial
"""
