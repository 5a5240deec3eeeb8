"""Images: what they are built from, when they are built again, and what is checked of them."""

import hashlib
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
from cluster import need
from commands import run
from launched import git as git_in

from lockstep.image import building
from lockstep.image.image_cli import image as command

ROOT = Path(__file__).parents[1]
DEFINITIONS = ROOT / "containers"
TIMEOUT_S = 120
TINY = """Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}  # replaced by an argument

%arguments
    # what can be changed
    BOOTSTRAP=localimage
    BASE=Base
    COMMIT=
    WORD=none

%files
    hello.txt /opt/
    some*.txt /opt/
    # a comment
    "a name.txt" /opt/

%post
    echo 'word={{ WORD }}'
    echo '{{ COMMIT }}' >/opt/COMMIT

%test
    test -s /opt/hello.txt

%labels
    org.opencontainers.image.revision {{ COMMIT }}
"""


FILES = ("hello.txt", "some1.txt", "some2.txt", "a name.txt")
BARE = "Bootstrap: docker\nFrom: x\n"
SIF = bytearray(200)
SIF[32:42] = b"SIF_MAGIC\0"
struct.pack_into("<2q", SIF, 112, 150, 50)
# Makes such a file of the last argument but one, which is the image.
MAKES = 'for i; do part=$image; image=$i; done; cp "$STAND_IN/made" "$part"'


def write_tiny(folder):
    (folder / "tiny.def").write_text(TINY)
    for name in FILES:
        (folder / name).write_text(name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tiny(tmp_path)
    (tmp_path / "Base").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stand_in(tmp_path_factory, monkeypatch):
    """Put an apptainer on PATH that answers --version and inspect, and builds as it is told."""

    def make(build, made=SIF):
        folder = tmp_path_factory.mktemp("bin")
        program = folder / "apptainer"
        program.write_text(
            f"""#!/bin/sh
            case $1 in
            --version) echo apptainer version 1.2.3 ;;
            inspect) echo '{{"data": {{"attributes": {{"labels": {{}}}}}}}}' ;;
            build) {build} ;;
            *) exit 9 ;;
            esac
            """
        )
        program.chmod(0o755)
        (folder / "made").write_bytes(bytes(made))
        monkeypatch.setenv("STAND_IN", str(folder))
        monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")

    return make


@pytest.fixture(autouse=True)
def _own_signals():
    """Keep the command's handler of SIGTERM out of the other tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def build(options=""):
    return json.loads(run(command, "build", "tiny.def", "--json", *shlex.split(options)).stdout)


# Definitions


def test_a_definition_is_read_with_its_arguments_filled_in(folder):
    tiny = building.load("tiny.def", {"WORD": "other"})
    defaults = {"BOOTSTRAP": "localimage", "BASE": "Base", "COMMIT": ""}
    assert tiny.arguments == defaults | {"WORD": "other"}
    assert (tiny.bootstrap, tiny.base) == ("localimage", "Base")
    assert tiny.sources == ("hello.txt", "some*.txt", "a name.txt")
    assert tiny.find_files() == [folder / name for name in FILES]


@pytest.mark.parametrize(
    ("text", "values", "names"),
    [
        (TINY, {"BASE": "nowhere"}, "base .*nowhere"),
        (f"{BARE}%files\n lost.txt /opt/\n", {}, "copies lost.txt"),
        (f"{BARE}\n{BARE}", {}, "more than one stage"),
    ],
)
def test_a_definition_that_cannot_be_built_says_why(folder, text, values, names):
    (folder / "x.def").write_text(text)
    with pytest.raises(ValueError, match=names):
        building.compute_key(building.load("x.def", values))


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("HF_TOKEN", "KEY")),
        *((name, False) for name in ("TOKENIZER", "MONKEY")),
    ],
)
def test_no_secret_is_built_into_an_image(folder, name, is_secret):
    (folder / "tiny.def").write_text(TINY.replace("WORD", name))
    if is_secret:
        with pytest.raises(ValueError, match=f"the build argument {name} looks like a secret"):
            building.load("tiny.def", {name: "x"})
    else:
        assert building.load("tiny.def", {name: "x"}).arguments[name] == "x"


@pytest.mark.parametrize("name", building.BUILT_IN)
def test_a_built_in_definition_copies_every_room_from_wherever_it_is_asked_for(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    copied = {path.name for path in building.load(name, {}).find_files()}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shipped = wheel["targets"]["wheel"]
    assert {*shipped["only-include"], *shipped["force-include"]} <= copied
    assert {"conftest.py", "pyproject.toml", "constraints.txt"} <= copied


def test_the_installation_script_is_clean():
    need("shellcheck")
    done = subprocess.run(
        ["shellcheck", DEFINITIONS / "install.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


# Keys


def key(folder, others=(), **arguments):
    return building.compute_key(building.load(str(folder / "tiny.def"), arguments), *others)


def test_a_key_stays_where_the_content_does(folder):
    before = key(folder)
    os.utime(folder / "hello.txt", (0, 0))
    (folder / "unused.txt").write_text("not copied")
    assert key(folder) == key(folder, COMMIT="1234") == before


@pytest.mark.parametrize(
    ("file", "text", "others", "arguments"),
    [
        ("hello.txt", "hello.tx_", (), {}),
        ("Base/file", "", (), {}),
        ("unused", "", (), {"WORD": "other"}),
        ("unused", "", ("another version",), {}),
    ],
)
def test_a_key_changes_with_the_content(folder, file, text, others, arguments):
    before = key(folder)
    (folder / file).write_text(text)
    assert key(folder, others, **arguments) != before


def test_a_key_counts_folders_without_caches_and_a_base_file_by_its_content(folder):
    (folder / "some1.txt").unlink()
    (folder / "some1.txt").mkdir()
    (folder / "base.sif").write_text("one")
    before = key(folder, BASE="base.sif")
    (folder / "some1.txt" / "__pycache__").mkdir()
    (folder / "some1.txt" / "__pycache__" / "x.pyc").write_text("")
    os.utime(folder / "base.sif", (0, 0))
    assert key(folder, BASE="base.sif") == before
    (folder / "base.sif").write_text("two")
    assert key(folder, BASE="base.sif") != before


# Building, with an Apptainer that does as it is told


@pytest.mark.parametrize(
    ("script", "made", "says"),
    [
        ("echo write: No space left on device; exit 255", SIF, "set APPTAINER_TMPDIR to a folder"),
        ("echo FATAL:   while running %post >&2; exit 255", SIF, "tiny.sif: while running %post;"),
        (MAKES, SIF[:60], "is incomplete: 68 bytes are missing"),
        (MAKES, b"text", "is not a SIF image"),
    ],
)
def test_a_build_that_fails_leaves_what_was_there_and_names_its_log(
    folder, stand_in, script, made, says
):
    stand_in(MAKES)
    build()
    before = {name: (folder / name).read_bytes() for name in ("tiny.sif", "tiny.sif.json")}
    stand_in(script, made)
    with pytest.raises(RuntimeError, match=says) as raised:
        build("--force")
    assert str(folder / "tiny.sif.log") in str(raised.value)
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert not (folder / "tiny.sif.part").exists()


def test_an_image_is_built_in_its_folder_with_the_options_asked_for(folder, stand_in):
    # A program that prints a lot, in any encoding, does not stop the build.
    talk = "head -c 300000 /dev/zero | tr '\\0' '\\377' >&2"
    stand_in(f'pwd >words; for word; do echo "$word" >>words; done; {talk}; {MAKES}')
    build("new/x.sif --apptainer-options '--bind \"/a b\"' --build-arg WORD='a,b \"c\"'")
    words = (folder / "words").read_text().splitlines()
    assert words[:4] == [str(folder), "build", "--bind", "/a b"]
    assert words[words.index('"WORD=a,b ""c"""') - 1] == "--build-arg"
    assert words[-2:] == [str(folder / "new" / "x.sif.part"), str(folder / "tiny.def")]
    assert (folder / "new" / "x.sif.log").stat().st_size == 300_000


def test_an_image_is_built_once_for_its_content(folder, stand_in):
    stand_in(f"echo built >>count; {MAKES}")
    plan = build("--dry-run")
    assert plan["state"] == "missing"
    assert plan["command"].startswith(f"cd {folder} && apptainer build --build-arg ")
    made = build()
    assert (made["state"], made["key"]) == ("built", plan["key"])
    assert made["sha256"] == hashlib.sha256(SIF).hexdigest()
    assert build() == made | {"state": "up to date"}
    count = folder / "count"
    for options, num_builds in [
        ("--dry-run", 1),
        ("--build-arg COMMIT=1234", 1),
        ("--force", 2),
        ("--build-arg WORD=x", 3),
        ("--build-arg WORD=x", 3),
    ]:
        build(options)
        assert len(count.read_text().splitlines()) == num_builds


@pytest.mark.slow
def test_a_build_that_is_ended_ends_apptainer_before_its_lock_is_free(folder, stand_in):
    # It ends a little after it is asked to, with a program of its own, as a section's.
    stand_in("sleep 60 & trap 'sleep 0.5; rm -f begun; exit 1' TERM; echo $! >begun; wait")
    words = [sys.executable, "-m", "lockstep", "image", "build", "tiny.def"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as first:
        while not (folder / "begun").exists() or not (folder / "begun").read_text():
            assert first.poll() is None
        program = int((folder / "begun").read_text())
        with pytest.raises(RuntimeError, match="another command is building"):
            build()
        first.terminate()
        assert first.wait(TIMEOUT_S) == 143
    assert not (folder / "begun").exists()
    assert not Path(f"/proc/{program}").exists()
    assert [x.name for x in folder.glob("tiny.sif*")] == ["tiny.sif.log"]


@pytest.mark.parametrize("change", ["copied", "other"])
def test_an_image_is_of_a_commit_if_what_it_copies_is(folder, stand_in, change):
    git = partial(git_in, Path())
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (folder / {"copied": "hello.txt", "other": "unused.txt"}[change]).write_text("changed")
    stand_in(MAKES)
    made, is_dirty = build(), change == "copied"
    assert (made["git_commit"], made["git_dirty"]) == (git("rev-parse", "HEAD"), is_dirty)
    image = (folder / "tiny.sif").stat()
    assert made["file_stat"] == f"{image.st_size} {int(image.st_mtime)} {image.st_ino}"
    assert made["build_args"]["COMMIT"] == made["git_commit"] + ("-dirty" if is_dirty else "")
    git("add", ".")
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert build()["state"] == ("built" if is_dirty else "up to date")


# Files


def test_a_hash_is_that_of_sha256sum_and_other_than_recorded_an_error(folder, stand_in):
    stand_in(MAKES)
    build()
    kept = run(command, "hash", "tiny.sif")
    theirs = subprocess.run(["sha256sum", "tiny.sif"], capture_output=True, text=True, check=True)
    assert (kept.return_value, kept.stdout) == (0, theirs.stdout)
    with (folder / "tiny.sif").open("r+b") as file:
        file.write(b"x")
    assert run(command, "hash", "tiny.sif").return_value == 1
    verified = run(command, "verify", "tiny.sif", "--json")
    assert verified.return_value == 1
    facts = json.loads(verified.stdout)
    assert facts["sha256"] != facts["recorded_sha256"] == hashlib.sha256(SIF).hexdigest()
