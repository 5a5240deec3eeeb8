"""A few rows of the table of faults, on the testbed; `make faults` puts in all of them."""

import faults_image
import faults_slurm
import ground
import pytest
from cluster import missing

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROWS = {fault.number: fault for fault in [*faults_slurm.FAULTS, *faults_image.FAULTS]}


@pytest.fixture(scope="module", autouse=True)
def testbed():
    if lack := ground.missing():
        missing(lack)


@pytest.mark.chaos
@pytest.mark.parametrize("number", [21, 29, 36, 48])
def test_a_fault_becomes_what_is_expected_of_it(number, tmp_path):
    seen = ROWS[number].inject(tmp_path)
    assert seen.holds, seen.text


def test_every_row_has_a_number_of_its_own():
    assert len(ROWS) == len(faults_slurm.FAULTS) + len(faults_image.FAULTS)
