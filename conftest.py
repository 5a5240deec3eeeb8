"""A checkout measures with its own code, also where another Lockstep is installed.

pytest has then loaded the installed plugin, which is the same few lines and imports the rest later.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parent)
if sys.path[0] != ROOT:
    sys.path.insert(0, ROOT)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "lockstep" and not str(module.__file__).startswith(ROOT):
        del sys.modules[name]

pytest_plugins = ["lockstep.plugin", "lockstep.launch.hooks"]
