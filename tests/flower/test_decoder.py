"""What a node sends as an array is an array of plain numbers, or malformed; needs no flwr."""

from __future__ import annotations

import numpy as np
import pytest

from flsel.flower.decoder import Malformed, npy

SIX = bytes(24)


def file(text: str, body: bytes = SIX, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text.encode("latin1") + body


def claims(
    shape: str, descr: str = "'<f4'", order: str = "False", more: str = "", body: bytes = SIX
) -> bytes:
    return file(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{more}}}\n", body)


MALFORMED = {
    "no entries of 10^28": claims("(0, 10000000000000000000000000000)", body=b""),
    "no entries of 2^63": claims("(0, 9223372036854775808)", body=b""),
    "no entries of too many": claims("(0, 99999999999, 99999999999, 99999999)", body=b""),
    "33 dimensions": claims(f"({'0,' * 33})", body=b""),
    "a truth value as size": claims("(True,)", body=bytes(4)),
    "a fraction as size": claims("(3.0, 2)"),
    "text as size": claims("('6',)"),
    "a complex size": claims("(6j,)"),
    "a size of 5,000 digits": claims(f"({'9' * 5000},)"),
    "sizes below zero": claims("(-3, -2)"),
    "a list as shape": claims("[3, 2]"),
    "a number as shape": claims("6"),
    "no shape": claims("None"),
    "bytes without type": claims("(6,)", "'|V4'"),
    "named fields": claims("(6,)", "[('a', '<f4')]"),
    "arrays in an array": claims("(1,)", "('<f4', (6,))"),
    "two types": claims("(3,)", "'f4,f4'"),
    "texts of no length": claims("(3, 2)", "'|S0'", body=b""),
    "texts": claims("(6,)", "'<U1'"),
    "times": claims("(3,)", "'<M8[us]'"),
    "spans of time": claims("(3,)", "'<m8[s]'"),
    "objects": claims("(3,)", "'|O'"),
    "complex numbers": claims("(3,)", "'<c8'"),
    "long doubles": claims("(1,)", "'<f16'", body=bytes(16)),
    "another byte order": claims("(6,)", "'>f4'"),
    "a number as type": claims("(6,)", "4"),
    "no type": claims("(6,)", "None"),
    "bytes as type": claims("(6,)", "b'<f4'"),
    "a mapping as type": claims("()", "{}"),
    "a number as order": claims("(6,)", order="1"),
    "an entry too many": claims("(6,)", more=", 'x': 1"),
    "entries that are missing": file("{'descr': '<f4'}"),
    "a set": file("{1, 2}"),
    "a call": file("__import__('os').abort()"),
    "brackets": file("[" * 9000 + "]" * 9000),
    "a header of 20,000 bytes": file(" " * 20_000 + "{}"),
    "a header of zeros": file("\0" * 50),
    "a header that is cut": file("{'descr': ", b""),
    "version 9": file("{}", version=b"\x09\x00"),
    "a byte too many": claims("(6,)", body=SIX + b"x"),
    "a byte too few": claims("(6,)", body=SIX[1:]),
    "truth values of 2": claims("(3,)", "'|b1'", body=b"\0\1\2"),
    "the first bytes": b"\x93NUMPY",
    "an archive": b"PK\x03\x04" + SIX,
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_bytes_that_are_no_array_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed) as error:
        npy(data)
    assert str(error.value).startswith("each array must ")
    assert len(str(error.value)) < 200


def test_arrays_are_views_of_what_came() -> None:
    for shape, descr in (("(3, 2)", "'<f4'"), ("(12,)", "'<f2'"), ("(24,)", "'|b1'"), ("(1, 3, 1)", "'<i8'")):
        found = npy(claims(shape, descr))
        assert found.nbytes == len(SIX)
        assert found.base is not None
        assert not np.any(found)
    assert npy(claims("(0, 7)", body=b"")).shape == (0, 7)
