"""A bundle: the same bytes from the same data, the same page from it, and nothing hostile in."""

import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path

import commands
import pytest
from commands import finish
from launched import environ

from lockstep.cli import lockstep
from lockstep.report.bundle import opening
from lockstep.slurm.status.serve_cli import KEY_FILE, read_key

ROOT = Path(__file__).parents[1]
SC_HEADINGS = (
    *("Main contribution", "Computational artifact", "Relation to contributions"),
    *("Expected results", "Expected reproduction time", "Artifact setup", "Artifact execution"),
    "Artifact analysis",
)


run = partial(commands.run, lockstep)


@pytest.fixture(scope="module")
def bundle(measured, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "first.tar.gz"
    run("bundle", measured / "fp32", "--to", path)
    return path


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(bundle) as tar:
        tar.extractall(place, filter="data")
    return place / "first"


def test_the_same_data_give_the_same_bytes_and_a_bundle_the_same_page(
    bundle, folder, measured, tmp_path
):
    run("bundle", measured / "fp32", "--to", tmp_path / "first.tar.gz")
    assert (tmp_path / "first.tar.gz").read_bytes() == bundle.read_bytes()
    run("report", tmp_path / "first.tar.gz")
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "BUNDLE", "DATA", "--json"),
        ("check", "BUNDLE", "--targets", "my.toml", "--against", "BUNDLE", "--json"),
    ],
)
def test_every_command_that_judges_opens_a_bundle(
    bundle, measured, arguments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("schema = 1\nthroughput_gain = -0.05\n")

    def said(results):
        names = {"BUNDLE": results, "DATA": measured / "fp32"}
        printed = run(*(names.get(word, word) for word in arguments)).stdout
        printed = printed.replace(str(measured / "fp32"), "RESULTS").replace(bundle.name, "RESULTS")
        document = json.loads(printed)
        if "look" in document:  # a bundle keeps none
            document["look"].pop("unrecorded")
        return document

    assert said(bundle) == said(measured / "fp32")


@pytest.mark.parametrize("name", [KEY_FILE, "mine.key"])
def test_a_key_of_events_stays_at_home(measured, tmp_path, name):
    shutil.copytree(measured / "fp32", tmp_path / "mine")
    read_key(tmp_path / "mine" / name)
    run("bundle", tmp_path / "mine")
    with tarfile.open(tmp_path / "mine.tar.gz") as tar:
        assert not any("key" in Path(path).name for path in tar.getnames())


def test_it_holds_the_data_and_describes_every_file(folder, measured):
    source = measured / "fp32" / "launches" / "w2-r0" / "result.json"
    inside = folder / "data" / "launches" / "w2-r0" / "result.json"
    assert inside.read_bytes() == source.read_bytes()
    graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    files = {one["@id"]: one["sha256"] for one in graph if one["@type"] == "File"}
    there = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    assert there - files.keys() == {"ro-crate-metadata.json", opening.SUMS}
    assert files["report.html"] == opening.digest(folder / "report.html")
    text = (folder / "artefact.md").read_text()
    assert all(re.search(rf"^### .. {one}$", text, re.MULTILINE) for one in SC_HEADINGS)


@pytest.mark.slow
def test_the_commands_of_reproduce_run(folder):
    text = (folder / "reproduce.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    script = "".join(blocks).replace("--to again", "--to again --dry-run")
    bin_folder = Path(sys.executable).parent
    ended = finish(
        ["bash", "-ec", f'lockstep() {{ "{sys.executable}" -m lockstep "$@"; }}\n{script}'],
        cwd=folder, env=environ(ROOT) | {"PATH": f"{bin_folder}:/usr/bin:/bin"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / "again.html").unlink()


def checksums(files):
    lines = (f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return "".join(lines).encode()


def packed(path, *members, sums=True):
    """Write an archive of (name, content or change of its header)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, given in members:
            info = tarfile.TarInfo(name)
            content = given if isinstance(given, bytes) else b""
            info.size = len(content)
            for key, value in {} if isinstance(given, bytes) else given.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
        if sums:
            known = {
                name.removeprefix("x/"): given for name, given in members
                if isinstance(given, bytes)
            }  # fmt: skip
            content = checksums(known)
            info = tarfile.TarInfo(f"x/{opening.SUMS}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


GOOD = ("x/a", b"a")
HOSTILE = {
    "outside": (("x/../../out", b"b"), "outside the destination"),
    "absolute": (("/tmp/out", b"b"), "is not a plain file"),  # noqa: S108
    "link": (("x/l", {"type": tarfile.SYMTYPE, "linkname": "/etc"}), "is not a plain file"),
    "two folders": (("y/b", b"b"), "no single folder"),
    "long name": ((f"x/{'n' * 300}", b"b"), "File name too long"),
}


@pytest.mark.parametrize(("member", "said"), HOSTILE.values(), ids=HOSTILE)
def test_what_no_bundle_holds_is_refused_and_nothing_is_written_outside(tmp_path, member, said):
    path = packed(tmp_path / "x.tar.gz", GOOD, member)
    with pytest.raises(ValueError, match=said), opening.open_archive(path):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["x.tar.gz"]


def test_a_bundle_that_is_changed_cut_short_or_too_large_is_refused(tmp_path, monkeypatch):
    path = packed(tmp_path / "x.tar.gz", GOOD, ("x/b", b"b"))
    with opening.open_archive(path) as folder:
        assert (folder / "b").read_bytes() == b"b"
    whole = path.read_bytes()
    for content in (whole[:-40], b"no archive"):
        path.write_bytes(content)
        with (
            pytest.raises(ValueError, match="not a bundle, or it is truncated"),
            opening.open_archive(path),
        ):
            pass
    changed = checksums({"a": b"other"})
    packed(path, GOOD, (f"x/{opening.SUMS}", changed), sums=False)
    with pytest.raises(ValueError, match="'a' was changed or damaged"), opening.open_archive(path):
        pass
    path.write_bytes(whole)
    monkeypatch.setattr(opening, "MAX_BYTES", 1)
    with pytest.raises(ValueError, match="unpack it"), opening.open_archive(path):
        pass
