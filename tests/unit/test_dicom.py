"""DICOM files, made by pydicom: shown as a viewer shows them, or refused in a sentence."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydicom")

import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels.utils import set_pixel_data
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEGLSLossless,
    generate_uid,
)

from fedscal.data.folders.benchmark import folder_benchmark
from fedscal.data.folders.decode import Unreadable, decode
from fedscal.data.folders.look import typical_side
from fedscal.data.folders.scan import scan

RAMP = np.array([[1000, 1500, 2000]] * 3, dtype=np.uint16)


def written(
    path: Path, values: Any, kind: str = "MONOCHROME2", bits: int = 16, syntax: str = "", **facts: Any
) -> Path:
    """Write an image as a scanner does; ``syntax`` is claimed, whatever the pixels are packed as."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.7")
    meta.MediaStorageSOPInstanceUID = generate_uid()
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    if values is not None:
        set_pixel_data(file, values, kind, bits, generate_instance_uid=False)
    for name, value in facts.items():
        setattr(file, name, value)
    if syntax:
        meta.TransferSyntaxUID = UID(syntax)
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)
    return path


def row(path: Path) -> list[int]:
    """Return the first row of an image of three columns, of one channel."""
    found = decode(path, side=3)
    assert (found == found[0]).all(), "grey"
    return [int(value) for value in found[0, 0]]


def test_sixteen_bits_are_spread_over_their_own_range(tmp_path: Path) -> None:
    # 1000, 1500, 2000 -> 0, 127.5, 255, as every 16-bit scan.
    assert row(written(tmp_path / "x.dcm", RAMP)) == [0, 128, 255]


def test_the_least_value_of_monochrome1_is_white(tmp_path: Path) -> None:
    assert row(written(tmp_path / "x.dcm", RAMP, "MONOCHROME1")) == [255, 127, 0]


def test_a_window_is_spread_and_what_lies_beyond_is_cut_off(tmp_path: Path) -> None:
    # In Hounsfield units 1000, 1500, 2000 are -24, 476, 976. PS3.3 C.11.2.1.2.1 with c=476, w=501:
    # ((x - 475.5) / 500 + 0.5) * 255 is below 0, 127.755 and above 255.
    units = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    facts: dict[str, Any] = {**units, "WindowCenter": [476, 40], "WindowWidth": [501, 80]}
    assert row(written(tmp_path / "x.dcm", RAMP, **facts)) == [0, 128, 255]
    # c=976, w=1001: (-24 - 975.5) / 1000 + 0.5 = -0.4995; 476 -> 0.0005; 976 -> 0.5005.
    wide = {**facts, "WindowCenter": 976, "WindowWidth": 1001}
    assert row(written(tmp_path / "y.dcm", RAMP, **wide)) == [0, 0, 128]


@pytest.mark.parametrize(
    ("function", "shown"),
    [("LINEAR_EXACT", [0, 128, 255]), ("SIGMOID", [5, 128, 250])],  # 255 / (1 + e^4) = 4.6
)
def test_windows_of_other_functions(tmp_path: Path, function: str, shown: list[int]) -> None:
    facts: dict[str, Any] = {"WindowCenter": 1500, "WindowWidth": 500, "VOILUTFunction": function}
    assert row(written(tmp_path / "x.dcm", RAMP, **facts)) == shown


def test_a_window_without_a_value_is_none(tmp_path: Path) -> None:
    assert row(written(tmp_path / "x.dcm", RAMP, WindowCenter=None, WindowWidth=None)) == [0, 128, 255]


def test_a_negative_slope_turns_the_values_round(tmp_path: Path) -> None:
    assert row(written(tmp_path / "x.dcm", RAMP, RescaleSlope=-1, RescaleIntercept=0)) == [255, 128, 0]


def test_padding_does_not_stretch_the_range(tmp_path: Path) -> None:
    padded = np.array([[0, 1000, 2000]] * 3, dtype=np.uint16)
    assert row(written(tmp_path / "x.dcm", padded, PixelRepresentation=0)) == [0, 128, 255]
    file = pydicom.dcmread(tmp_path / "x.dcm")
    file.add_new("PixelPaddingValue", "US", 0)
    file.save_as(tmp_path / "y.dcm")
    assert row(tmp_path / "y.dcm") == [0, 0, 255]


def test_eight_bits_stay_as_they_are(tmp_path: Path) -> None:
    values = np.array([[10, 20, 30]] * 3, dtype=np.uint8)
    assert row(written(tmp_path / "x.dicom", values, bits=8)) == [10, 20, 30]


def test_colours_stay_as_they_are(tmp_path: Path) -> None:
    values = np.zeros((3, 3, 3), dtype=np.uint8)
    values[..., 0], values[..., 2] = 200, 50
    found = decode(written(tmp_path / "x.dcm", values, "RGB", 8), side=3)
    assert found[:, 1, 1].tolist() == [200, 0, 50]


def truncated(path: Path) -> Path:
    path.write_bytes(written(path, RAMP).read_bytes()[:-6])
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: written(path, np.stack([RAMP, RAMP])), "it has 2 frames: save the one that is meant"),
        (lambda path: written(path, None), "it is DICOM without an image"),
        (lambda path: written(path, RAMP, syntax=DeflatedExplicitVRLittleEndian), "it is deflated"),
        (lambda path: written(path, RAMP, Rows=60_000, Columns=60_000), "60000 x 60000 pixels are too many"),
        (truncated, "cannot be decoded: "),
    ],
    ids=["frames", "no image", "deflated", "large", "cut"],
)
def test_what_cannot_be_shown_is_refused_in_a_line(tmp_path: Path, make: Any, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason) as caught:
        decode(make(tmp_path / "x.dcm"))
    assert "\n" not in str(caught.value)


def test_what_pillow_cannot_unpack_is_named_with_what_can(tmp_path: Path) -> None:
    path = written(tmp_path / "x.dcm", RAMP)
    file = pydicom.dcmread(path)
    file.PixelData = pydicom.encaps.encapsulate([file.PixelData])
    file.file_meta.TransferSyntaxUID = JPEGLSLossless
    file.save_as(path)
    with pytest.raises(Unreadable, match=r"packed as JPEG-LS Lossless.*gdcmconv --raw"):
        decode(path)


@pytest.mark.parametrize("content", [b"no head at all" * 30, b"\0" * 128 + b"DICM" + b"\xff" * 400])
def test_noise_that_is_called_dicom_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.dcm").write_bytes(content)
    with pytest.raises(Unreadable):
        decode(tmp_path / "x.dcm")


def test_sequences_within_sequences_without_end_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.dcm", None)
    sequence = struct.pack("<HH2sHI", 0x0008, 0x1110, b"SQ", 0, 0xFFFFFFFF)
    item = struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF)
    path.write_bytes(path.read_bytes() + (sequence + item) * 5000)
    with pytest.raises(Unreadable):
        decode(path)


def test_a_folder_of_scans_is_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for number in range(3):
        written(tmp_path / "sites" / "a" / f"{number}.DCM", RAMP)
    tree = scan(tmp_path / "sites")
    assert [len(files) for files in tree.domains.values()] == [3]
    assert typical_side(tree) == 3
    images = folder_benchmark(str(tmp_path / "sites"), side=32).folder
    assert images is not None
    assert len(images.images("a")) == 3
