"""A checkout measures with its own code, also where another Lockstep is installed.

pytest has then loaded the installed plugin, which is the same few lines and imports the rest later.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent
OWN = f"{ROOT / 'lockstep'}/"  # an installation may lie in a folder of the checkout, such as .venv
if sys.path[0] != str(ROOT):
    sys.path.insert(0, str(ROOT))
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "lockstep" and not str(module.__file__).startswith(OWN):
        del sys.modules[name]

pytest_plugins = ["lockstep.plugin", "lockstep.launch.hooks"]
