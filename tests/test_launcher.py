"""Starting ranks on this machine: a path that holds the suite, and nobody else's launcher."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.campaign import launcher


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
