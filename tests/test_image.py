"""Images: what they are built from, when they are built again, and what is checked of them."""

import csv
import hashlib
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import figures_image
import pytest
from cluster import (
    IMAGE,
    SHARED,
    STATE,
    as_user,
    missing,
    need,
    need_testbed,
    without_namespaces,
)
from hypothesis import given
from hypothesis import strategies as st

from lockstep.image import apptainer, definition, sif
from lockstep.image import building as image

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


def lockstep(arguments, cwd, timeout_s=TIMEOUT_S, **environ):
    """Run the command as it is typed, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *shlex.split(arguments)],
        cwd=cwd,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    """A folder with a small definition and what it copies."""
    (tmp_path / "tiny.def").write_text(TINY)
    for name in ("hello.txt", "some1.txt", "some2.txt", "a name.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "Base").mkdir()
    return tmp_path


@pytest.fixture
def tiny(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return definition.load("tiny.def", {})


# Definitions


def test_a_definition_is_read_with_its_arguments_filled_in(folder, tiny):
    assert tiny.arguments == {
        "BOOTSTRAP": "localimage",
        "BASE": "Base",
        "COMMIT": "",
        "WORD": "none",
    }
    assert (tiny.bootstrap, tiny.base, tiny.local_base) == ("localimage", "Base", folder / "Base")
    assert tiny.sources == ("hello.txt", "some*.txt", "a name.txt")
    copied = ["hello.txt", "some1.txt", "some2.txt", "a name.txt"]
    assert tiny.copied() == [folder / name for name in copied]


def test_a_file_may_be_called_as_a_header_is(folder, monkeypatch):
    monkeypatch.chdir(folder)
    lines = "bootstrap.sh /opt/\n    from:x /opt/"
    (folder / "tiny.def").write_text(TINY.replace("hello.txt /opt/\n", f"{lines}\n", 1))
    sources = definition.load("tiny.def", {}).sources
    assert sources == ("bootstrap.sh", "from:x", "some*.txt", "a name.txt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("nope.def", "there is no definition nope.def; give a file or one of cpu, pytorch"),
        ("tiny.def --build-arg NOPE=1", "has no build argument NOPE; it has BASE, BOOTSTRAP, COM"),
        ("tiny.def --build-arg WORD", "'WORD' is not NAME=VALUE"),
        ("tiny.def --build-arg =x", "'=x' is not NAME=VALUE"),
        ("tiny.def --build-arg BASE=nowhere", "nowhere; give a file or a folder, or another BOO"),
        ("tiny.def --build-arg WORD='a\nb'", "the build argument WORD holds a newline"),
        ('tiny.def --apptainer-options "\'"', "is no command line: No closing quotation"),
        ("bare.def", "bare.def needs a value of BASE; add --build-arg BASE=VALUE"),
        ("lost.def", "lost.def copies lost.txt, which is not in "),
        ("an.sif", "an.sif is an image; the definition comes first, then the image"),
        ("two.def", "two.def has more than one stage, whose bases would go unrecorded; build "),
    ],
)
def test_a_definition_that_cannot_be_built_gives_one_sentence(
    folder, stand_in, arguments, sentence
):
    (folder / "bare.def").write_text("Bootstrap: docker\nFrom: {{ BASE }}\n")
    (folder / "lost.def").write_text("Bootstrap: docker\nFrom: x\n%files\n lost.txt /opt/\n")
    (folder / "an.sif").write_bytes(b"\0")
    (folder / "two.def").write_text("Bootstrap: docker\nFrom: x\n\nBootstrap: docker\nFrom: y\n")
    ended = lockstep(f"image build {arguments}", folder, PATH=stand_in("exit 9"))
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True),
        ("token", True),
        ("AWS_SECRET_ID", True),
        ("PASSWD", True),
        ("KEY", True),
        ("API_KEY", True),
        ("APIKEY", True),
        ("TOKENIZER", False),
        ("MONKEY", False),
        ("BASE", False),
    ],
)
def test_no_secret_is_built_into_an_image(folder, name, is_secret):
    path = folder / "tiny.def"
    path.write_text(TINY.replace("WORD", name))
    if not is_secret:
        assert definition.load(str(path), {name: "x"}).arguments[name] == "x"
        return
    with pytest.raises(ValueError, match=f"{name} would stay readable in the image"):
        definition.load(str(path), {name: "x"})


def test_a_line_in_a_section_that_reads_as_a_header_is_no_stage(folder):
    # Apptainer begins a stage at such a line only where it is not indented.
    path = folder / "tiny.def"
    path.write_text(TINY + "\n%runscript\n    echo 'x\n    Bootstrap: docker'\n")
    assert definition.load(str(path), {}).base == "Base"


def test_the_two_definitions_differ_in_their_base_alone():
    texts = {name: (DEFINITIONS / f"{name}.def").read_text() for name in definition.BUILT_IN}
    bodies = []
    for name, text in texts.items():
        lines = [line for line in text.splitlines() if not line.strip().startswith("BASE=")]
        bodies.append([line.replace(" --nv", "").replace(f"build {name} ", "") for line in lines])
    assert bodies[0] == bodies[1]
    for section in [
        "arguments",
        "files",
        "post",
        "environment",
        "runscript",
        "test",
        "labels",
        "help",
    ]:
        assert f"\n%{section}\n" in texts["cpu"]


@pytest.mark.parametrize("name", definition.BUILT_IN)
def test_a_built_in_definition_copies_every_room_from_wherever_it_is_asked_for(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    copied = {path.name for path in definition.load(name, {}).copied()}
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
    return definition.key(definition.load(str(folder / "tiny.def"), arguments), *others)


def test_a_key_stays_where_the_content_does(folder, tiny):
    before = key(folder)
    os.utime(folder / "hello.txt", (0, 0))
    (folder / "unused.txt").write_text("not copied")
    assert key(folder) == before
    assert key(folder, COMMIT="1234") == before


@pytest.mark.parametrize("change", ["file", "new file", "definition", "argument", "base", "other"])
def test_a_key_changes_with_the_content(folder, tiny, change):
    before = key(folder)
    others, arguments = (), {}
    if change == "file":
        (folder / "hello.txt").write_text("hello.tx_")
    elif change == "new file":
        (folder / "some3.txt").write_text("")
    elif change == "definition":
        (folder / "tiny.def").write_text(TINY + "\n")
    elif change == "argument":
        arguments = {"WORD": "other"}
    elif change == "base":
        (folder / "Base" / "file").write_text("")
    else:
        others = ("another version",)
    assert key(folder, others, **arguments) != before


def test_a_key_counts_folders_without_caches_and_a_base_file_by_its_content(folder, tiny):
    shutil.rmtree(folder / "some1.txt", ignore_errors=True)
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


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1))
def test_a_build_argument_is_one_cell_of_the_line_apptainer_reads(value):
    # The library that reads it is Go's encoding/csv, which keeps to RFC 4180 as Python's does.
    cells = next(csv.reader([image._quoted(f"NAME={value}")], strict=True))
    assert cells == [f"NAME={value}"]


# What Apptainer does to us, by a stand-in


SIF = bytearray(200)
SIF[32:42] = b"SIF_MAGIC\0"
struct.pack_into("<2q", SIF, 112, 150, 50)
# Makes such a file of the last argument but one, which is the image.
MAKES = 'for i; do part=$image; image=$i; done; cp "$STAND_IN/made" "$part"'


@pytest.fixture
def stand_in(tmp_path_factory, monkeypatch):
    """A PATH with an apptainer that answers --version and inspect, and builds as it is told."""

    def make(build, made=SIF):
        folder = tmp_path_factory.mktemp("bin")
        program = folder / "apptainer"
        program.write_text(
            f"""#!/bin/sh
            case $1 in
            --version) echo apptainer version 1.2.3 ;;
            key) echo Fingerprint: 1234 ;;
            sign) echo signed >>signed ;;
            inspect) echo '{{"data": {{"attributes": {{"labels": {{}}}}}}}}' ;;
            build) {build} ;;
            *) exit 9 ;;
            esac
            """
        )
        program.chmod(0o755)
        (folder / "made").write_bytes(bytes(made))
        monkeypatch.setenv("STAND_IN", str(folder))
        return f"{folder}:{os.defpath}"

    return make


@pytest.mark.slow
def test_without_apptainer_nothing_is_built(folder):
    ended = lockstep("image build tiny.def", folder, PATH=str(folder))
    assert ended.returncode == 3
    assert ended.stderr.startswith("Error: apptainer is not installed here, or not on PATH")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "made", "sentence"),
    [
        ("echo write: No space left on device; exit 255", SIF, "set APPTAINER_TMPDIR to a folder"),
        ("echo FATAL:   while running %post >&2; exit 255", SIF, "tiny.sif: while running %post;"),
        ("exit 7", SIF, "could not build tiny.sif: it ended with exit code 7; "),
        ("echo done", SIF, "there is no image file "),
        (MAKES, SIF[:190], "is cut short: 10 bytes of it are missing"),
        (MAKES, b"text", "is no SIF image"),
    ],
)
def test_a_build_that_fails_leaves_what_was_there_and_names_its_log(
    folder, stand_in, build, made, sentence
):
    first = lockstep("image build tiny.def", folder, PATH=stand_in(MAKES))
    assert first.returncode == 0, first.stderr
    before = {name: (folder / name).read_bytes() for name in ("tiny.sif", "tiny.sif.json")}
    ended = lockstep("image build tiny.def --force", folder, PATH=stand_in(build, made))
    assert ended.returncode == 3, ended.stderr
    assert sentence in ended.stderr.splitlines()[-1]
    assert str(folder / "tiny.sif.log") in ended.stderr
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert not (folder / "tiny.sif.part").exists()


@pytest.mark.slow
def test_a_program_that_says_a_lot_in_any_encoding_does_not_stop_the_build(folder, stand_in):
    talk = "head -c 300000 /dev/zero | tr '\\0' '\\377' >&2; head -c 300000 /dev/zero"
    ended = lockstep("image build tiny.def", folder, PATH=stand_in(f"{talk}; {MAKES}"))
    assert ended.returncode == 0, ended.stderr
    assert (folder / "tiny.sif.log").stat().st_size == 600_000


@pytest.mark.slow
def test_an_image_is_built_in_its_folder_with_the_options_asked_for(folder, stand_in):
    say = 'pwd >>words; for word; do echo "$word" >>words; done'
    options = "--apptainer-options '--bind \"/a b\"' --build-arg WORD='a,b \"c\"'"
    ended = lockstep(
        f"image build tiny.def new/x.sif {options}", folder, PATH=stand_in(f"{say}; {MAKES}")
    )
    assert ended.returncode == 0, ended.stderr
    words = (folder / "words").read_text().splitlines()
    assert words[:4] == [str(folder), "build", "--bind", "/a b"]
    assert words[words.index('"WORD=a,b ""c"""') - 1] == "--build-arg"
    assert words[-2:] == [str(folder / "new" / "x.sif.part"), str(folder / "tiny.def")]
    assert not any("sudo" in word for word in words)


@pytest.mark.slow
def test_an_image_is_built_once_for_its_content(folder, stand_in):
    path = stand_in(f"echo built >>count; {MAKES}")
    for arguments, num_builds in [
        ("--dry-run", 0),
        ("", 1),
        ("", 1),
        ("--dry-run", 1),
        ("--build-arg COMMIT=1234", 1),
        ("--force", 2),
        ("--build-arg WORD=x", 3),
        ("--build-arg WORD=x", 3),
        ("--build-arg WORD=x --apptainer-options=--nv", 4),
    ]:
        ended = lockstep(f"image build tiny.def {arguments}", folder, PATH=path)
        assert ended.returncode == 0, ended.stderr
        count = folder / "count"
        assert num_builds == (len(count.read_text().splitlines()) if count.exists() else 0)


@pytest.mark.slow
def test_an_unsigned_image_is_built_again_to_be_signed(folder, stand_in):
    path = stand_in(f"echo built >>count; {MAKES}")
    said = []
    for arguments in ("", "--sign --dry-run", "--sign", "--sign", ""):
        ended = lockstep(f"image build tiny.def {arguments}", folder, PATH=path)
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout.splitlines()[0].removeprefix(f"{folder}/"))
    assert said[1] == "tiny.sif is unsigned; this would build it:"
    assert (folder / "count").read_text() == "built\n" * 2
    assert (folder / "signed").read_text() == "signed\n"
    assert said[3].startswith("tiny.sif is up to date: ")


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_ended_ends_apptainer_before_its_lock_is_gone(folder, stand_in, end):
    # It ends a little after it is told to, with a program of its own, as a section's.
    build = "sleep 60 & trap 'sleep 0.5; rm -f begun; exit 1' TERM; echo $! >begun; wait"
    path = stand_in(build)
    command = [sys.executable, "-m", "lockstep", "image", "build", "tiny.def"]
    with subprocess.Popen(command, cwd=folder, env=os.environ | {"PATH": path}) as first:
        while not (folder / "begun").exists() or not (folder / "begun").read_text():
            assert first.poll() is None
        program = int((folder / "begun").read_text())
        first.send_signal(end)
        assert first.wait(TIMEOUT_S) == {signal.SIGTERM: 143, signal.SIGINT: 130}[end]
    assert not (folder / "begun").exists()
    assert not Path(f"/proc/{program}").exists()
    assert [x.name for x in folder.glob("tiny.sif*")] == ["tiny.sif.log"]


@pytest.mark.slow
def test_an_apptainer_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    with pytest.raises(RuntimeError, match=r"apptainer gave no answer within 0\.2 s"):
        apptainer.ask("key", timeout_s=0.2)


@pytest.mark.slow
def test_a_file_that_was_not_built_here_is_not_replaced_unasked(folder, stand_in):
    path, file = stand_in(MAKES), folder / "tiny.sif"
    file.write_text("precious")
    (folder / "tiny.sif.json").write_text("{}")
    ended = lockstep("image build tiny.def", folder, PATH=path)
    assert ended.returncode == 2
    assert "tiny.sif is there and is not what tiny.sif.json records as built" in ended.stderr
    assert file.read_text() == "precious"
    assert lockstep("image build tiny.def --force", folder, PATH=path).returncode == 0
    assert file.read_bytes() == bytes(SIF)


@pytest.mark.slow
def test_one_command_builds_an_image_at_a_time(folder, stand_in):
    path = stand_in(f"touch begun; while [ ! -e go ]; do sleep 0.05; done; {MAKES}")
    command = [sys.executable, "-m", "lockstep", "image", "build", "tiny.def"]
    with subprocess.Popen(command, cwd=folder, env=os.environ | {"PATH": path}) as first:
        while not (folder / "begun").exists():
            assert first.poll() is None
        try:
            second = lockstep("image build tiny.def", folder, PATH=path)
        finally:
            (folder / "go").touch()
        assert first.wait() == 0
    assert second.returncode == 3
    assert "another command builds " in second.stderr


@pytest.mark.slow
def test_a_plan_can_be_read_by_a_program(folder, stand_in):
    path = stand_in(MAKES)
    ended = lockstep("image build tiny.def --dry-run --json", folder, PATH=path)
    plan = json.loads(ended.stdout)
    assert plan["state"] == "missing"
    assert plan["command"].startswith(f"cd {folder} && apptainer build --build-arg ")
    made = json.loads(lockstep("image build tiny.def --json", folder, PATH=path).stdout)
    assert (made["state"], made["key"]) == ("built", plan["key"])
    assert made["sha256"] == hashlib.sha256(SIF).hexdigest()
    again = json.loads(lockstep("image build tiny.def --json", folder, PATH=path).stdout)
    assert again == made | {"state": "up to date"}


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, "copied", "new", "other"])
def test_an_image_is_of_a_commit_if_what_it_copies_is(folder, stand_in, change):
    def git(*words):
        name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(
            ["git", *name, *words], cwd=folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    if change:
        names = {"copied": "hello.txt", "new": "some3.txt", "other": "unused.txt"}
        (folder / names[change]).write_text("changed")
    path, commit = stand_in(MAKES), git("rev-parse", "HEAD")
    made = json.loads(lockstep("image build tiny.def --json", folder, PATH=path).stdout)
    is_dirty = change in ("copied", "new")
    assert (made["git_commit"], made["git_dirty"]) == (commit, is_dirty)
    git("add", ".")
    git("commit", "-q", "--allow-empty", "-m", "two")
    again = json.loads(lockstep("image build tiny.def --json", folder, PATH=path).stdout)
    assert again["state"] == ("built" if is_dirty else "up to date")
    assert made["build_args"]["COMMIT"] == made["git_commit"] + ("-dirty" if is_dirty else "")


@pytest.mark.slow
def test_an_image_is_not_signed_without_a_key(folder, stand_in):
    path = Path(stand_in(MAKES).partition(":")[0])
    program = path / "apptainer"
    program.write_text(program.read_text().replace("Fingerprint", "nothing"))
    ended = lockstep("image build tiny.def --sign", folder, PATH=f"{path}:{os.defpath}")
    assert ended.returncode == 3
    assert "there is no key to sign with; apptainer key newpair makes one" in ended.stderr
    assert not (folder / "tiny.sif").exists()


# Files


@pytest.mark.slow
def test_a_hash_reads_as_sha256sum_prints_it(tmp_path):
    (tmp_path / "x.sif").write_bytes(b"hello" * 3_000_000)
    ended = lockstep("image hash x.sif", tmp_path)
    theirs = subprocess.run(
        ["sha256sum", "x.sif"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ended.returncode, ended.stdout) == (0, theirs.stdout)


@pytest.mark.slow
def test_a_hash_other_than_recorded_is_told(folder, stand_in):
    path = stand_in(MAKES)
    lockstep("image build tiny.def", folder, PATH=path)
    assert lockstep("image hash tiny.sif", folder).returncode == 0
    with (folder / "tiny.sif").open("r+b") as file:
        file.write(b"x")
    for command in ("hash", "verify"):
        ended = lockstep(f"image {command} tiny.sif", folder, PATH=path)
        assert ended.returncode == 1
        assert f"{hashlib.sha256(SIF).hexdigest()} was recorded" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "verify", "hash"])
def test_an_image_that_is_not_there_is_the_users_slip(tmp_path, command):
    ended = lockstep(f"image {command} x.sif", tmp_path)
    assert ended.returncode == 2
    assert "there is no image file x.sif; lockstep image build makes one" in ended.stderr


@pytest.mark.parametrize(
    ("content", "missing_bytes"),
    [(SIF, 0), (SIF[:199], 1), (SIF[:60], 68), (SIF + b"more", 0), (b"text", None), (b"", None)],
)
def test_a_header_tells_what_is_cut_off(tmp_path, content, missing_bytes):
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    header = sif.read_header(path)
    assert (header and header.missing_bytes(path)) == missing_bytes


@pytest.mark.parametrize(
    ("text", "step", "reason"),
    [
        ("INFO:    Copying bench\n", "Copying bench", "INFO:    Copying bench"),
        (
            "INFO:    Creating SIF\nINFO:    To see mksquashfs output\n",
            "Creating SIF",
            "INFO:    To",
        ),
        ("\x1b[34mINFO:\x1b[0m    A\nINFO:    B\n\x1b[31mFATAL:   it is\x1b[0m\n", "B", "it is"),
        (
            "x\nFATAL:   tar: write: no space left on device\nFATAL:   no\n",
            None,
            "tar: write: no sp",
        ),
        ("", None, None),
    ],
)
def test_a_log_tells_what_is_done_and_why_it_failed(text, step, reason):
    assert apptainer.current_step(text) == step
    assert (apptainer.reason(text) or "").startswith(reason or "")
    assert bool(apptainer.reason(text)) == bool(reason)


# The real Apptainer, on a base of two programs

OPTIONS = "--build-arg BASE=base --apptainer-options=--fakeroot"


@pytest.fixture(scope="module")
def real_base(tmp_path_factory):
    need("apptainer")
    base = tmp_path_factory.mktemp("image") / "base"
    for name in ("dev", "etc", "home", "opt", "proc", "root", "sys", "tmp", "usr", "var/tmp"):
        (base / name).mkdir(parents=True)
    for name in ("passwd", "group"):
        (base / "etc" / name).touch()
    for program in ("sh", "cat", "test"):
        _copy_program(Path(shutil.which(program)), base)
    return base


def _copy_program(program, base):
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    libraries = [word for word in said.split() if word.startswith("/")]
    for source, target in [(program, f"bin/{program.name}"), *((x, x[1:]) for x in libraries)]:
        (base / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, base / target)


@pytest.fixture
def real(folder, real_base, monkeypatch):
    """A folder to build real images in, with a keyring of its own."""
    (folder / "base").symlink_to(real_base)
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(folder / "keys"))
    return folder


def in_image(folder, *command):
    # In a user namespace root can run it too, where the machine denies root a capability.
    done = subprocess.run(
        ["apptainer", "exec", "--userns", "--no-home", folder / "tiny.sif", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slurm
@pytest.mark.slow
def test_a_real_image_holds_what_was_asked_for_and_says_so(real):
    word = """a,b "c" $d;e"""
    options = f"{OPTIONS} --build-arg WORD={shlex.quote(word)}"
    ended = lockstep(f"image build tiny.def {options} --build-arg COMMIT=1234", real)
    assert ended.returncode == 0, ended.stderr
    assert "Running post scriptlet" in (real / "tiny.sif.log").read_text()
    assert f"word={word}\n" in (real / "tiny.sif.log").read_text()
    assert in_image(real, "cat", "/opt/COMMIT", "/opt/a name.txt") == "1234\na name.txt"
    assert "up to date" in lockstep(f"image build tiny.def {options}", real).stdout
    facts = json.loads(lockstep("image inspect tiny.sif --json", real).stdout)
    assert facts["labels"][image.REVISION] == "1234"
    assert facts["sha256"] == hashlib.sha256((real / "tiny.sif").read_bytes()).hexdigest()
    assert facts["sha256_from"] == "record"
    assert ", as recorded; lockstep image verify" in lockstep("image inspect tiny.sif", real).stdout
    assert "%post" in facts["definition_text"]
    (real / "tiny.sif.json").unlink()
    alone = json.loads(lockstep("image inspect tiny.sif --json", real).stdout)
    assert alone["sha256_from"] == "file"
    for name in ("sha256", "labels", "definition_text", "bootstrap"):
        assert alone[name] == facts[name]
    assert alone["git_commit"] == "1234"


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("echo 'word", "exit 4\n    echo 'word", "while running %post section: exit status 4"),
        ("test -s", "test ! -s", "failed to execute %test"),
        ("%post", "%pots", "invalid section(s) specified: pots"),
        ("localimage", "bogus", "invalid build source bogus"),
    ],
)
def test_a_real_build_that_fails_says_why(real, old, new, why):
    (real / "tiny.def").write_text(TINY.replace(old, new))
    ended = lockstep(f"image build tiny.def {OPTIONS}", real)
    assert ended.returncode == 3
    assert why in ended.stderr.splitlines()[-1]
    assert sorted(path.name for path in real.glob("tiny.sif*")) == ["tiny.sif.log"]


@pytest.mark.slurm
@pytest.mark.slow
def test_a_real_build_where_nobody_may_make_a_user_namespace_says_how_to_check():
    need_testbed()
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        Path(folder).chmod(0o777)
        Path(folder, "own.def").write_text(f"Bootstrap: localimage\nFrom: {IMAGE}\n")
        build = ("lockstep", "image", "build", "own.def", "x.sif")
        ended = without_namespaces(*build, cwd=folder)
    assert ended.returncode == 3
    assert ended.stderr.endswith(
        "no user namespace available for fakeroot; where unshare --user --map-root-user true "
        "fails, too, ask for user namespaces, or build on another machine; all it said is in "
        f"{folder}/x.sif.log\n"
    )
    assert len(ended.stderr.split("Error: ")) == 2
    assert "Traceback" not in ended.stderr


@pytest.mark.slurm
@pytest.mark.slow
def test_a_real_image_is_signed_and_verified(real, monkeypatch):
    assert lockstep(f"image build tiny.def {OPTIONS}", real).returncode == 0
    plain = lockstep("image verify tiny.sif", real)
    assert (plain.returncode, plain.stdout.splitlines()[-1]) == (0, "signature: unsigned")
    wanted = lockstep("image verify tiny.sif --signed", real)
    assert (wanted.returncode, wanted.stdout) == (1, "")
    assert "its signature is wanted and is: unsigned" in wanted.stderr
    assert lockstep(f"image build tiny.def {OPTIONS} --force --sign", real).returncode == 3
    newpair = (
        "apptainer key newpair --name x --email x@example.org --comment= --password= --push=false"
    )
    subprocess.run(newpair.split(), capture_output=True, check=True)
    signed = lockstep(f"image build tiny.def {OPTIONS} --force --sign", real)
    assert signed.returncode == 0, signed.stderr
    good = json.loads(lockstep("image verify tiny.sif --signed --json", real).stdout)
    assert (good["signature"], good["failures"], len(good["signed_by"])) == ("valid", [], 1)
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(real / "others"))
    unknown = lockstep("image verify tiny.sif", real)
    assert (unknown.returncode, unknown.stdout.splitlines()[-1]) == (0, "signature: unknown key")
    assert lockstep("image verify tiny.sif --signed", real).returncode == 1


@pytest.mark.slurm
@pytest.mark.slow
def test_a_real_image_that_was_changed_or_cut_is_found_out(real):
    newpair = (
        "apptainer key newpair --name x --email x@example.org --comment= --password= --push=false"
    )
    subprocess.run(newpair.split(), capture_output=True, check=True)
    assert lockstep(f"image build tiny.def {OPTIONS} --sign", real).returncode == 0
    whole = (real / "tiny.sif").read_bytes()
    (real / "tiny.sif.json").unlink()
    middle = len(whole) // 2
    (real / "tiny.sif").write_bytes(
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    )
    changed = lockstep("image verify tiny.sif", real)
    assert changed.returncode == 1
    assert "data object integrity compromised" in changed.stderr
    (real / "tiny.sif").write_bytes(whole[:middle])
    assert lockstep("image verify tiny.sif", real).returncode == 1
    cut = lockstep("image inspect tiny.sif", real)
    assert cut.returncode == 2
    assert f"is cut short: {len(whole) - middle} bytes" in cut.stderr


@pytest.fixture
def base_with_torch(tmp_path):
    """A Debian with stand-ins for torch and torchvision, and versions that pip is to keep to."""
    need_testbed()
    found = sorted((STATE / "base").glob("*.sif"))
    if not found:
        missing(f"there is no base in {STATE / 'base'}; tests/testbed/image makes one")
    base = tmp_path / "base"
    unpack = ["apptainer", "build", "--fakeroot", "--sandbox", base, found[-1]]
    subprocess.run(unpack, capture_output=True, check=True)
    for name in ("torch", "torchvision"):
        package = base / "usr/lib/python3/dist-packages" / name
        package.mkdir()
        (package / "__init__.py").write_text("__version__ = '9.8.7+base'\n")
    (base / "etc/pip").mkdir()
    (base / "etc/pip/constraint.txt").write_text("click==8.1.7\n")
    return base


@pytest.mark.chaos
@pytest.mark.slurm
@pytest.mark.slow
def test_an_image_beside_a_bases_own_torch_keeps_it_and_can_be_read_by_all(
    base_with_torch, tmp_path
):
    """As every image for GPUs is built, whose base no registry is at hand for here."""
    suite, folder = tmp_path / "suite", SHARED / "beside"
    suite.mkdir()
    for path in definition.load("pytorch", {}).copied():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, suite / path.name)
    # As a checkout under umask 077 has it.
    for path in suite.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    options = "--fakeroot --notest --bind /etc/ssl/certs --mksquashfs-args '-comp lz4'"
    try:
        ended = lockstep(
            f"image build containers/pytorch.def {folder}/x.sif --build-arg BOOTSTRAP=localimage "
            f'--build-arg BASE={base_with_torch} --apptainer-options "{options}"',
            suite,
            timeout_s=900,
        )
        assert ended.returncode == 0, ended.stderr
        ask = "import torch, torchvision as v, click; print(torch.__version__, v.__version__)"
        inside = ("apptainer", "exec", folder / "x.sif")
        versions = as_user(*inside, "python3", "-c", f"{ask}; print(click.__version__)")
        assert versions.stdout == "9.8.7+base 9.8.7+base\n8.1.7\n", versions.stderr
        helped = as_user(*inside, "lockstep", "--help")
        assert "Measure how PyTorch" in helped.stdout, helped.stderr
        read = as_user(*inside, "find", "/opt/lockstep", "!", "-readable")
        assert (read.returncode, read.stdout) == (0, ""), read.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# What it costs


def test_the_systems_python_stands_for_the_images_only_with_this_ones_packages(monkeypatch):
    asks = ["/usr/bin/python3", "--version"]
    monkeypatch.setattr(sys, "version_info", (2, 7, 18))
    assert figures_image._twin(asks) == sys.executable


def test_a_comparison_says_which_software_is_not_the_same():
    outside = {"torch": "2.6", "libc": "glibc 2.41"}
    facts = {"outside": outside, "inside": outside | {"libc": "glibc 2.36"}}
    said = figures_image.differences(facts)
    assert said == "torch 2.6, libc glibc 2.41 outside, glibc 2.36 in"


@pytest.mark.chaos
@pytest.mark.slurm
@pytest.mark.slow
def test_a_step_takes_about_as_long_inside_the_image(monkeypatch):
    if lack := figures_image.missing():
        missing(lack)
    small = replace(figures_image.PLANS["0.3 ms step"], turns=4)
    monkeypatch.setattr(figures_image, "PLANS", {"0.3 ms step": small})
    ratio, step_s = figures_image.compare()["plans"]["0.3 ms step"]
    assert 0.2 < ratio < 5
    assert 1e-5 < step_s < 0.1
