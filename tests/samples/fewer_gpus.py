"""As sitecustomize: the GPUs that torch tells of where no rank runs; ranks stay on the CPU."""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder


class Fewer(MetaPathFinder):
    """Counts the GPUs that the environment says as soon as torch.cuda is loaded."""

    def find_spec(self, name, path, target=None):
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.device_count = lambda: int(os.environ["NUM_GPUS"])
            module.is_available = lambda: True

        spec.loader.exec_module = exec_module
        return spec


if "RANK" not in os.environ:
    exists = os.path.exists
    os.path.exists = lambda path: path == "/dev/nvidiactl" or exists(path)
    sys.meta_path.insert(0, Fewer())
