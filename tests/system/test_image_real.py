"""Images as the real Apptainer builds them, on a base of two programs and on Debian."""

import hashlib
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import commands
import pytest
from cluster import SHARED, as_user, done, need, need_base
from test_image import TINY, write_tiny

from lockstep.image import building, inspection

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
OPTIONS = "--build-arg BASE=base --apptainer-options=--fakeroot"


def lockstep(arguments, cwd, **options):
    """Run the command as it is typed, in a folder of its own."""
    return commands.lockstep(*shlex.split(arguments), cwd=cwd, **options)


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
    said = commands.finish(["ldd", program]).stdout
    libraries = [word for word in said.split() if word.startswith("/")]
    for source, target in [(program, f"bin/{program.name}"), *((x, x[1:]) for x in libraries)]:
        (base / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, base / target)


@pytest.fixture
def real(tmp_path, real_base, monkeypatch):
    """A folder to build real images in, with a keyring of its own."""
    write_tiny(tmp_path)
    (tmp_path / "base").symlink_to(real_base)
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(tmp_path / "keys"))
    return tmp_path


def in_image(folder, *command):
    # In a user namespace root can run it too, where the machine denies root a capability.
    inside = ["apptainer", "exec", "--userns", "--no-home", folder / "tiny.sif"]
    return done(commands.finish([*inside, *command]))


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
    assert facts["labels"][inspection.REVISION] == "1234"
    assert facts["sha256"] == hashlib.sha256((real / "tiny.sif").read_bytes()).hexdigest()
    assert facts["sha256_from"] == "record"
    assert "%post" in facts["definition_text"]
    (real / "tiny.sif.json").unlink()
    alone = json.loads(lockstep("image inspect tiny.sif --json", real).stdout)
    assert alone["sha256_from"] == "file"
    for name in ("sha256", "labels", "definition_text", "bootstrap"):
        assert alone[name] == facts[name]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("echo 'word", "exit 4\n    echo 'word", "while running %post section: exit status 4"),
        ("test -s", "test ! -s", "failed to execute %test"),
    ],
)
def test_a_real_build_that_fails_says_why(real, old, new, why):
    (real / "tiny.def").write_text(TINY.replace(old, new))
    ended = lockstep(f"image build tiny.def {OPTIONS}", real)
    assert ended.returncode == 3
    assert why in ended.stderr.splitlines()[-1]
    assert sorted(path.name for path in real.glob("tiny.sif*")) == ["tiny.sif.log"]


@pytest.fixture
def base_with_torch(tmp_path):
    """A Debian with stand-ins for torch and torchvision, and versions that pip is to keep to."""
    base = tmp_path / "base"
    unpack = ["apptainer", "build", "--fakeroot", "--sandbox", base, need_base()]
    subprocess.run(unpack, capture_output=True, check=True)
    for name in ("torch", "torchvision"):
        package = base / "usr/lib/python3/dist-packages" / name
        package.mkdir()
        (package / "__init__.py").write_text("__version__ = '9.8.7+base'\n")
    (base / "etc/pip").mkdir()
    (base / "etc/pip/constraint.txt").write_text("click==8.1.7\n")
    return base


@pytest.mark.chaos
def test_an_image_beside_a_bases_own_torch_keeps_it_and_can_be_read_by_all(
    base_with_torch, tmp_path
):
    """As every image for GPUs is built, whose base no registry is at hand for here."""
    suite, folder = tmp_path / "suite", SHARED / "beside"
    suite.mkdir()
    for path in building.load("pytorch", {}).find_files():
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
            timeout=900,
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
