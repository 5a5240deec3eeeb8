"""Any torchvision classification model by its own name: `resnet152`, `vit_b_16:image=384`."""

from typing import Any

import torchvision
from torch import nn

from lockstep.workloads import Builder, Workload, unknown
from lockstep.workloads.images import image_workload

# In training these two return extra outputs that no plain loss takes, unless an option forbids it.
_NO_EXTRA_OUTPUTS = {"aux_logits": False, "init_weights": True}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": _NO_EXTRA_OUTPUTS,
    "inception_v3": _NO_EXTRA_OUTPUTS,
}


def builder(name: str) -> Builder:
    """Return the builder of a torchvision classification model.

    Raises:
        ValueError: torchvision has no such model.
    """
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise unknown(name, names)

    def make(image: int = 224, classes: int = 1000) -> Workload:
        def build() -> nn.Module:
            arguments = _ARGUMENTS.get(name, {}) | _size_argument(name, image)
            return torchvision.models.get_model(  # type: ignore[no-any-return]
                name, weights=None, num_classes=classes, **arguments
            )

        return image_workload(name, build, 3, image, classes)

    return make  # type: ignore[return-value]


def _size_argument(name: str, image: int) -> dict[str, Any]:
    """Return the image size for the models whose layers depend on it."""
    if name.startswith("vit_"):
        return {"image_size": image}
    if name.startswith("maxvit_"):
        return {"input_size": (image, image)}
    return {}
