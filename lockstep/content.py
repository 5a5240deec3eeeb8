"""The place of the files that are not code: benchmarks, image definitions, templates and tables.

In a checkout they are next to the package, in an installation inside it, under the same names.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "content"
# Holds bench/, containers/, reports/ and slurm_templates/.
ROOT = INSTALLED if INSTALLED.is_dir() else PACKAGE.parent
# What a child process needs on PYTHONPATH to import the package.
IMPORTABLE_FROM = PACKAGE.parent
