"""Where the files lie that are no code: measured tests, definitions, templates and tables.

In a checkout they lie next to the package, in an installation inside it, under the same names.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
INSTALLED = PACKAGE / "content"
# Holds bench/, containers/, reports/ and slurm_templates/.
ROOT = INSTALLED if INSTALLED.is_dir() else PACKAGE.parent
# What a child process needs on PYTHONPATH to import the package.
IMPORTABLE_FROM = PACKAGE.parent
