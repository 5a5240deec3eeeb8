"""Starting ranks on this machine: a path that holds the suite, and nobody else's launcher."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.campaign import launcher

RANK = """
import os
from pathlib import Path

# To a file each: what two ranks print at once may stand in one line.
facts = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
Path(f"rank{facts[0]}.txt").write_text(" ".join(facts))
"""


def test_ranks_forget_an_outer_launcher_and_keep_the_rest() -> None:
    outer = {"RANK": "3", "WORLD_SIZE": "4", "LOCKSTEP_LAUNCHER": "slurm", "PET_NNODES": "2"}
    own = {"HOME": "/home/me", "OMP_NUM_THREADS": "9"}
    environ = launcher.local_environment(outer | own, 3)
    assert not set(outer) & set(environ)
    assert (environ["HOME"], environ["OMP_NUM_THREADS"]) == ("/home/me", "3")
    assert environ["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": f"/mine{os.pathsep}/also"}])
def test_the_suite_comes_first_on_the_path(own: Mapping[str, str]) -> None:
    first, *rest = launcher.local_environment(own, 1)["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "lockstep" / "__init__.py").is_file()
    assert rest == [*["/mine", "/also"] * bool(own), str(Path.cwd())]


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_one_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "lockstep").mkdir()  # a checkout's, which the ranks do not take
    (tmp_path / "lockstep" / "__init__.py").write_text("1 / 0")
    subprocess.run(
        [*launcher.torchrun(2), "-m", "rank"],
        # An outer torchrun's options, with which this one would start no module.
        env=launcher.local_environment(os.environ | {"PET_NO_PYTHON": "1"}, 1),
        check=True,
    )
    said = [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)]
    assert said == ["0 2 127.0.0.1", "1 2 127.0.0.1"]
