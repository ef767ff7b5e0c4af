"""Writes the golden files of tests/io/data with the packages whose formats they are.

python3 -m venv VENV && VENV/bin/pip install numpy ml_dtypes safetensors
"""

import pathlib
import re

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
DATA = HERE / "data"
BUNDLE_DOC = HERE.parent.parent / "docs" / "bundle.md"


def save_npy() -> None:
    count = np.arange(6).reshape(2, 3)
    for name in ("f2", "f4", "f8"):
        np.save(DATA / f"{name}.npy", (count * 0.5 - 1).astype(name))
    for name in ("i4", "i8"):
        np.save(DATA / f"{name}.npy", (count - 2).astype(name))
    for name in ("u1", "u8"):
        np.save(DATA / f"{name}.npy", count.astype(name))
    np.save(DATA / "bool.npy", count % 2 == 1)
    np.save(DATA / "scalar.npy", np.float64(2.5))
    np.save(DATA / "empty.npy", np.zeros((0, 3), np.int32))
    np.save(DATA / "one_dimension.npy", np.arange(5, dtype=np.int64))
    for version in (2, 3):
        with open(DATA / f"version{version}.npy", "wb") as file:
            np.lib.format.write_array(file, count.astype(np.float32), version=(version, 0))
    np.save(DATA / "fortran.npy", np.asfortranarray(count.astype(np.float32)))
    np.save(DATA / "big_endian.npy", count.astype(">f4"))
    np.save(DATA / "objects.npy", np.array([None, 1], object))
    np.save(DATA / "structured.npy", np.zeros(2, [("x", "<i4")]))


def save_safetensors() -> None:
    count = np.arange(6).reshape(2, 3)
    tensors = {
        "bool": count % 2 == 1,
        "u8": count.astype(np.uint8),
        "u64": np.array([0, 2**64 - 1], np.uint64),
        "f16": (count * 0.5).astype(np.float16),
        "bf16": np.array([1, -2, 0], ml_dtypes.bfloat16),
        "f32": (count * 0.5).astype(np.float32),
        "f64": (count * 0.5).astype(np.float64),
        "e4m3": np.array([1, -2, 448], ml_dtypes.float8_e4m3fn),
        "i32": (count - 2).astype(np.int32),
        "i64": (count - 2).astype(np.int64),
        "scalar": np.array(1.5, np.float32),
        "empty": np.zeros((0, 4), np.int32),
    }
    save_file(tensors, DATA / "dtypes.safetensors")
    # One metadata entry: the package writes several in no fixed order. No BOOL: it is written as U8.
    del tensors["bool"]
    save_file(tensors, DATA / "rewrite.safetensors", {"made by": "safetensors é"})
    save_file({"bad": count.astype(np.int16)}, DATA / "i16.safetensors")


def save_bundle() -> None:
    """Runs the writing example of docs/bundle.md, so that the example is known to work."""
    examples = re.findall(r"```python\n(.*?)```", BUNDLE_DOC.read_text(), re.DOTALL)
    writer = examples[1].replace('"step.safetensors"', repr(str(DATA / "bundle.safetensors")))
    exec(writer, {})
    reader = examples[0].replace('"step.safetensors"', repr(str(DATA / "bundle.safetensors")))
    exec(reader, {})


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    save_npy()
    save_safetensors()
    save_bundle()
