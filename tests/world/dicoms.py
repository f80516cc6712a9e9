"""DICOMs made of arrays, for the tests that read them."""

import io

import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian


def record_of(stored, **tags):
    """A DICOM record of an array of 8 or 16 bits, with any tags changed; none leaves one out."""
    record = Dataset()
    record.file_meta = FileMetaDataset()
    record.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    record.file_meta.MediaStorageSOPClassUID = record.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    record.file_meta.MediaStorageSOPInstanceUID = record.SOPInstanceUID = "1.2.826.0.1.3680043.8.498.1"
    record.Rows, record.Columns = stored.shape
    record.SamplesPerPixel, record.PhotometricInterpretation = 1, "MONOCHROME2"
    record.BitsAllocated = record.BitsStored = stored.dtype.itemsize * 8
    record.HighBit = record.BitsStored - 1
    record.PixelRepresentation = int(stored.dtype.kind == "i")
    record.add_new("PixelData", "OW" if record.BitsAllocated == 16 else "OB", stored.tobytes())
    for name, value in tags.items():
        setattr(record, name, value)
        if value is None:
            delattr(record, name)
    return record


def dicom(stored, **tags):
    """The bytes of such a record, as a file has them."""
    file = io.BytesIO()
    pydicom.dcmwrite(file, record_of(stored, **tags), implicit_vr=False, little_endian=True, enforce_file_format=True)
    return file.getvalue()
