"""Builds the training text of a byte-level language model of Python source:

    python3 tools/train/corpus.py OUT [--cache DIR]

The text is the running Python's standard library with its tests, and the packages of packages.txt, which pip downloads
to DIR (OUT/downloads). OUT receives, for `train` and `heldout`,

    NAME.bin            the bytes of all files, one file after the other, in an order that their paths' hashes give
    NAME.offsets.npy    int64 [files + 1], where each file begins, and the end
    corpus.json         what came from where, under which licence; sizes and checksums

The same Python and the same packages give the same bytes: nothing is drawn at random. Needs NumPy.
"""

import argparse
import ast
import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

PACKAGES = Path(__file__).with_name("packages.txt")

HELDOUT_SHARE = 0.013  # of the files
SHINGLE_LINES = 5
MAX_SHARED = 0.1  # of a held-out file's shingles, that may occur in the training files

MAX_FILE_BYTES = 300_000
MAX_LINE = 300
MAX_LONG_LINES = 0.02
MAX_MEDIAN_LINE = 120
MAX_DATA = 0.25
DATA = re.compile(rb"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|[0-9]")

# Copies of other projects, under licences that packages.txt does not name.
VENDORED = {"_vendor", "_vendored", "vendored", "extern", "externals"}
# Not the library's own source: installed packages, inputs of tests, and a module that the build generated.
STDLIB_LEFT_OUT = ("site-packages/", "lib2to3/tests/data/", "_sysconfigdata")
# One table after the other, all alike: held out, they would be easy.
NEVER_HELD_OUT = ("stdlib/encodings/",)


@dataclass(frozen=True)
class SourceFile:
    source: str
    path: str
    text: bytes

    @property
    def name(self) -> str:
        return f"{self.source}/{self.path}"

    @cached_property
    def digest(self) -> bytes:
        """Decides the file's place and whether it is a candidate for being held out."""
        return hashlib.sha256(self.name.encode()).digest()

    @property
    def candidate(self) -> bool:
        if self.name.startswith(NEVER_HELD_OUT):
            return False
        return int.from_bytes(self.digest[:8], "big") < HELDOUT_SHARE * 2**64


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    licence: str


def read_packages(requirements: str) -> list[Package]:
    """The `name==version  # licence` lines of a requirements file."""
    packages = []
    for line in requirements.splitlines():
        if not line.strip() or line.startswith(("#", "-")):
            continue
        match = re.fullmatch(r"([\w.-]+)==(\S+)\s+# (.+)", line)
        if not match:
            raise ValueError(f"expected 'name==version  # licence', got {line!r}")
        packages.append(Package(*match.groups()))
    return packages


def archive_of(package: Package, folder: Path) -> Path | None:
    """The package's wheel or source distribution; names of wheels and of sdists spell the package differently."""
    stem = re.sub(r"[-_.]+", "_", package.name).lower() + "-" + package.version
    for path in sorted(folder.glob("*")):
        name, _, rest = path.name.partition("-")
        if path.name.endswith((".whl", ".tar.gz")):
            normalised = f"{re.sub(r'[-_.]+', '_', name).lower()}-{rest}"
            if normalised.startswith((stem + "-", stem + ".tar.gz")):
                return path
    return None


def download(packages: list[Package], folder: Path) -> list[Path]:
    """The archive of each package; asks pip when one is missing."""
    if not all(archive_of(package, folder) for package in packages):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-r", str(PACKAGES), "-d", str(folder)], check=True)
    archives = []
    for package in packages:
        archive = archive_of(package, folder)
        if archive is None:
            raise FileNotFoundError(f"pip left no archive of {package.name}=={package.version} in {folder}")
        archives.append(archive)
    return archives


def stdlib_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """(path, contents) of the standard library below `root`."""
    if not (root / "test").is_dir():
        raise FileNotFoundError(
            f"{root} has no test/: this Python comes without the tests of its library; use one that has them (pyenv)"
        )
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(STDLIB_LEFT_OUT) and path.is_file():
            yield name, path.read_bytes()


def archive_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(path, contents) of the Python files in a wheel or a source distribution, without what it vendors."""

    def wanted(name: str) -> bool:
        return name.endswith(".py") and VENDORED.isdisjoint(PurePosixPath(name).parts)

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(filter(wanted, wheel.namelist())):
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as sdist:
        members = [member for member in sdist.getmembers() if member.isfile() and wanted(member.name)]
        for member in sorted(members, key=lambda member: member.name):
            contents = sdist.extractfile(member)
            assert contents is not None
            # The outermost folder names the version.
            yield member.name.partition("/")[2], contents.read()


def clean(contents: bytes) -> tuple[bytes, str]:
    """The text to learn from and an empty string, or why the file is not for learning."""
    if len(contents) > MAX_FILE_BYTES:
        return b"", "too large"
    try:
        text = contents.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return b"", "not UTF-8"
    if not text.strip():
        return b"", "empty"
    lengths = sorted(len(line) for line in text.splitlines())
    if sum(length > MAX_LINE for length in lengths) > MAX_LONG_LINES * len(lengths):
        return b"", "long lines"
    if lengths[len(lengths) // 2] > MAX_MEDIAN_LINE:
        return b"", "long lines"
    encoded = text.encode()
    if sum(map(len, DATA.findall(encoded))) > MAX_DATA * len(encoded):
        return b"", "data"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return b"", "does not parse"
    return encoded, ""


def collect(source: str, files: Iterable[tuple[str, bytes]], seen: set[bytes], left_out: Counter) -> list[SourceFile]:
    """The files worth learning from whose text is not in `seen`, which grows; `left_out` counts the others."""
    kept = []
    for path, contents in files:
        text, reason = clean(contents)
        digest = hashlib.sha256(text).digest()
        if not reason and digest in seen:
            reason = "duplicate"
        if reason:
            left_out[reason] += 1
            continue
        seen.add(digest)
        kept.append(SourceFile(source, path, text))
    return kept


def shingles(text: bytes) -> set[bytes]:
    """Every run of SHINGLE_LINES lines, blank ones and indentation aside; of a shorter text, all of it."""
    lines = [line for line in map(bytes.strip, text.split(b"\n")) if line]
    last = max(len(lines) - SHINGLE_LINES, 0)
    return {b"\n".join(lines[i : i + SHINGLE_LINES]) for i in range(last + 1)}


def split(files: Iterable[SourceFile]) -> tuple[list[SourceFile], list[SourceFile], int]:
    """Training files, held-out files, each by digest, and how many candidates for the latter were too well known.

    A candidate is compared with the files that are none. That two candidates resemble each other is left alone.
    """
    ordered = sorted(files, key=lambda file: file.digest)
    train = [file for file in ordered if not file.candidate]
    candidates = [(file, shingles(file.text)) for file in ordered if file.candidate]
    asked = set().union(*(own for _, own in candidates))
    known: set[bytes] = set()
    for file in train:
        known |= asked & shingles(file.text)
    moved = [file for file, own in candidates if len(own & known) > MAX_SHARED * len(own)]
    names = {file.name for file in moved}
    heldout = [file for file, _ in candidates if file.name not in names]
    return sorted(train + moved, key=lambda file: file.digest), heldout, len(moved)


def write(out: Path, name: str, files: list[SourceFile]) -> str:
    """Writes NAME.bin and NAME.offsets.npy; answers the checksum of the first."""
    text = b"".join(file.text for file in files)
    (out / f"{name}.bin").write_bytes(text)
    np.save(out / f"{name}.offsets.npy", np.cumsum([0] + [len(file.text) for file in files], dtype=np.int64))
    return hashlib.sha256(text).hexdigest()


def size(files: Iterable[SourceFile]) -> dict[str, int]:
    lengths = [len(file.text) for file in files]
    return {"files": len(lengths), "bytes": sum(lengths)}


def report(packages: list[Package], train: list[SourceFile], heldout: list[SourceFile]) -> dict:
    """What corpus.json says of the sources."""
    sources = {"stdlib": ("stdlib", "PSF-2.0")}
    sources |= {package.name: (f"{package.name}=={package.version}", package.licence) for package in packages}
    return {
        "python": platform.python_version(),
        "sources": [
            {
                "source": title,
                "licence": licence,
                "train": size(file for file in train if file.source == source),
                "heldout": size(file for file in heldout if file.source == source),
            }
            for source, (title, licence) in sources.items()
        ],
        "train": size(train),
        "heldout": size(heldout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the training text of a byte-level model of Python source.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write to")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where the packages are (default: OUT/downloads)")
    arguments = parser.parse_args()
    started = time.monotonic()
    cache = arguments.cache or arguments.out / "downloads"
    for folder in (arguments.out, cache):
        folder.mkdir(parents=True, exist_ok=True)

    packages = read_packages(PACKAGES.read_text())
    try:
        stdlib = list(stdlib_files(Path(sysconfig.get_path("stdlib"))))
        archives = download(packages, cache)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"corpus.py: {error}")

    seen: set[bytes] = set()
    left_out: Counter = Counter()
    files = collect("stdlib", stdlib, seen, left_out)
    for package, archive in zip(packages, archives, strict=True):
        files += collect(package.name, archive_files(archive), seen, left_out)
    train, heldout, moved = split(files)

    summary = report(packages, train, heldout)
    for name, part in (("train", train), ("heldout", heldout)):
        summary[name]["sha256"] = write(arguments.out, name, part)
    (arguments.out / "corpus.json").write_text(json.dumps(summary, indent=2) + "\n")

    for entry in summary["sources"]:
        print(f"{entry['train']['bytes'] / 1e6:8.1f} MB {entry['train']['files']:6} files  {entry['source']}")
    print("left out:", ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()))
    print(f"{moved} of {moved + len(heldout)} candidates for being held out were too well known and moved to train")
    for name in ("train", "heldout"):
        print(f"{name}: {summary[name]['bytes'] / 1e6:.2f} MB in {summary[name]['files']} files")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
