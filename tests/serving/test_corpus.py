"""tools/train/corpus.py: what is learned from, what is held out, and that the answer is always the same. No network."""

import io
import json
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/train"))

import corpus

GOOD = b'def f(x):\n\t"""Doubles."""\n    \n\treturn 2 * x  \n'


def program(seed: int, lines: int = 40) -> bytes:
    """Lines that no program of another seed has."""
    return b"".join(b"value_%d_of_%d = compute(%d)\n" % (line, seed, line) for line in range(lines))


def paths(held_out: bool, count: int) -> list[str]:
    """Paths that the hash makes candidates for being held out, or not."""
    names = (f"module_{i}.py" for i in range(100_000))
    chosen = [name for name in names if corpus.SourceFile("demo", name, b"").candidate == held_out]
    return chosen[:count]


def add_to_tar(archive: tarfile.TarFile, name: str, contents: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(contents)
    archive.addfile(member, io.BytesIO(contents))


def test_text_is_kept_as_it_is_but_for_line_ends() -> None:
    assert corpus.clean(GOOD) == (GOOD, "")
    assert corpus.clean(GOOD.replace(b"\n", b"\r\n")) == (GOOD, "")
    assert corpus.clean(b"\xef\xbb\xbf" + GOOD) == (GOOD, "")


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b" \n\n", "empty"),
        (b"x = '\xff'\n", "not UTF-8"),
        (b"print 'two'\n", "does not parse"),
        (b"x = '\x00'\n", "does not parse"),
        (b"#\n" * 150_001, "too large"),
        (b"x\n" * 97 + (b"#" * 301 + b"\n") * 3, "long lines"),
        ((b"#" * 121 + b"\n") * 3 + b"x\n" * 2, "long lines"),
        (b"t = [1, 2, 3, 4, 5, 6, 77]\n", "data"),
        (b"t = b'\\x00\\xff\\x1a'\n", "data"),
    ],
)
def test_left_out(contents: bytes, reason: str) -> None:
    assert corpus.clean(contents) == (b"", reason)


@pytest.mark.parametrize(
    "contents",
    [
        b"#\n" * 150_000,
        b"x\n" * 98 + (b"#" * 301 + b"\n") * 2,
        (b"#" * 120 + b"\n") * 5,
        b"t = [1, 2, 3, x, y, z]\n",
        b"x = '\\d'\n",
    ],
)
def test_just_within_the_limits(contents: bytes) -> None:
    assert corpus.clean(contents) == (contents, "")


def test_collect_drops_duplicates_across_sources() -> None:
    seen: set[bytes] = set()
    left_out: Counter = Counter()
    first = corpus.collect("one", [("a.py", GOOD), ("b.py", b"")], seen, left_out)
    second = corpus.collect("two", [("a.py", GOOD.replace(b"\n", b"\r\n")), ("c.py", b"x = y\n")], seen, left_out)
    assert [file.name for file in first + second] == ["one/a.py", "two/c.py"]
    assert left_out == {"empty": 1, "duplicate": 1}


def test_shingles() -> None:
    assert corpus.shingles(b"  a\n\nb \n") == {b"a\nb"}
    assert corpus.shingles(b"a\nb\nc\n\n  d\ne\nf\n") == {b"a\nb\nc\nd\ne", b"b\nc\nd\ne\nf"}


def test_about_the_wanted_share_is_held_out() -> None:
    files = [corpus.SourceFile("demo", f"{i}.py", program(i, 6)) for i in range(4000)]
    train, heldout, moved = corpus.split(files)
    assert moved == 0
    assert {file.name for file in train + heldout} == {file.name for file in files}
    assert not {file.name for file in train} & {file.name for file in heldout}
    assert 0.5 < len(heldout) / (corpus.HELDOUT_SHARE * len(files)) < 1.5


def test_encodings_are_never_held_out() -> None:
    def candidates(source: str) -> int:
        return sum(corpus.SourceFile(source, f"encodings/{i}.py", b"").candidate for i in range(2000))

    assert candidates("stdlib") == 0
    assert candidates("demo") > 0


def test_what_the_training_text_knows_is_moved_to_it() -> None:
    [known, barely_known, new] = paths(held_out=True, count=3)
    [trained] = paths(held_out=False, count=1)
    text = program(1)
    # Both have 40 lines, so 36 shingles. Eight lines of the training text make four, more than a tenth; seven three.
    files = [
        corpus.SourceFile("demo", trained, text),
        corpus.SourceFile("demo", known, b"\n".join(text.split(b"\n")[:8]) + b"\n" + program(2, 32)),
        corpus.SourceFile("demo", barely_known, b"\n".join(text.split(b"\n")[20:27]) + b"\n" + program(3, 33)),
        corpus.SourceFile("demo", new, program(4)),
    ]
    train, heldout, moved = corpus.split(files)
    assert [file.path for file in train] == [known, trained]  # a small hash is what makes a candidate
    assert {file.path for file in heldout} == {barely_known, new}
    assert moved == 1


def test_candidates_are_not_compared_with_each_other() -> None:
    twins = [corpus.SourceFile("demo", path, program(1) + b"last = %d\n" % i) for i, path in enumerate(paths(True, 2))]
    assert corpus.split(twins)[1:] == (sorted(twins, key=lambda file: file.digest), 0)


def test_order_of_the_files_does_not_matter() -> None:
    files = [corpus.SourceFile("demo", f"{i}.py", program(i, 6)) for i in range(500)]
    split = corpus.split(files)
    assert corpus.split(reversed(files)) == split
    assert [file.path for file in split[0]] != sorted(file.path for file in split[0])


def test_stdlib_files(tmp_path: Path) -> None:
    kept = ["encodings/cp1.py", "json/tool.py", "test/test_json.py"]
    other = ["site-packages/numpy.py", "lib2to3/tests/data/py2.py", "_sysconfigdata__linux.py", "test/data.txt"]
    for name in kept + other:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    assert list(corpus.stdlib_files(tmp_path)) == [(name, name.encode()) for name in kept]


def test_stdlib_without_tests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_bytes(GOOD)
    with pytest.raises(FileNotFoundError, match="no test/"):
        list(corpus.stdlib_files(tmp_path))


def test_archives(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "Zope_Thing-1.0-py3-none-any.whl", "w") as wheel:
        for name in ("zope/b.py", "zope/a.py", "zope/_vendor/c.py", "zope/table.json"):
            wheel.writestr(name, name)
    with tarfile.open(tmp_path / "other-2.0.tar.gz", "w:gz") as sdist:
        for name in ("other-2.0/tests/t.py", "other-2.0/other.py", "other-2.0/extern/x.py", "other-2.0/PKG-INFO"):
            add_to_tar(sdist, name, name.encode())
    thing, other = corpus.read_packages("# Comment\n--no-binary other\nzope.thing==1.0  # MIT\nother==2.0  # BSD\n")
    assert (thing.licence, other.licence) == ("MIT", "BSD")

    archives = corpus.download([thing, other], tmp_path)  # nothing to download
    assert list(corpus.archive_files(archives[0])) == [("zope/a.py", b"zope/a.py"), ("zope/b.py", b"zope/b.py")]
    expected = [("other.py", b"other-2.0/other.py"), ("tests/t.py", b"other-2.0/tests/t.py")]
    assert list(corpus.archive_files(archives[1])) == expected


def test_another_version_is_another_archive(tmp_path: Path) -> None:
    (tmp_path / "demo-1.0.1-py3-none-any.whl").touch()
    assert corpus.archive_of(corpus.Package("demo", "1.0", "MIT"), tmp_path) is None
    assert corpus.archive_of(corpus.Package("demo", "1.0.1", "MIT"), tmp_path) is not None


@pytest.mark.parametrize("line", ["demo==1.0", "demo>=1.0  # MIT", "demo  # MIT"])
def test_a_package_needs_version_and_licence(line: str) -> None:
    with pytest.raises(ValueError, match="licence"):
        corpus.read_packages(line)


def test_the_packages_are_permissively_licensed() -> None:
    packages = corpus.read_packages(corpus.PACKAGES.read_text())
    assert len({package.name for package in packages}) == len(packages) > 20
    assert not [package for package in packages if "GPL" in package.licence or "MPL" in package.licence]


def test_written_files(tmp_path: Path) -> None:
    files = [corpus.SourceFile("stdlib", "a.py", b"abc\n"), corpus.SourceFile("demo", "b.py", b"de\n")]
    checksum = corpus.write(tmp_path, "train", files)
    assert (tmp_path / "train.bin").read_bytes() == b"abc\nde\n"
    offsets = np.load(tmp_path / "train.offsets.npy")
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, 4, 7]
    assert corpus.write(tmp_path, "heldout", []) != checksum
    assert np.load(tmp_path / "heldout.offsets.npy").tolist() == [0]


def test_report() -> None:
    files = [corpus.SourceFile("stdlib", "a.py", b"abc\n"), corpus.SourceFile("demo", "b.py", b"de\n")]
    summary = json.loads(json.dumps(corpus.report([corpus.Package("demo", "1.0", "MIT")], files, files[1:])))
    one, none = {"files": 1, "bytes": 3}, {"files": 0, "bytes": 0}
    assert summary["sources"][1] == {"source": "demo==1.0", "licence": "MIT", "train": one, "heldout": one}
    assert summary["sources"][0]["heldout"] == none
    assert (summary["train"], summary["heldout"]) == ({"files": 2, "bytes": 7}, one)
