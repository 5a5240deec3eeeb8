"""The facts of a machine, read from the machine: the entries of SYSTEM.md.

A fact that cannot be read is None, and a dash in the text. This works without torch, such as on a
login node.
"""

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from lockstep import content
from lockstep.core.metrics import TERA
from lockstep.core.processes import answer
from lockstep.machine import hardware, network, nvidia, provenance
from lockstep.machine.memory import GIB

TITLE = "# Systems\n\nMachines that measured results, as `lockstep doctor --system` saw them.\n\n"
DASH = "-"
COMMAND_TIMEOUT_S = 20
SYSTEM_FOLDER = Path("/sys")
# Rows of an entry: title -> fact.
PROCESSOR = {
    "CPU": "cpu_model", "Sockets": "sockets", "Cores": "cores",
    "Hardware threads": "hardware_threads", "NUMA nodes": "numa_nodes",
}  # fmt: skip
SOFTWARE = {
    "Operating system": "os", "Kernel": "kernel", "NVIDIA driver": "driver", "Python": "python",
    "torch": "torch", "torchvision": "torchvision", "CUDA of this torch": "cuda",
    "cuDNN of this torch": "cudnn", "NCCL of this torch": "nccl",
}  # fmt: skip
TOOLS = {"MPI": "mpi", "UCX": "ucx", "Slurm": "slurm", "Apptainer": "apptainer"}


def system_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of an entry, with the type of the folder's file system."""
    machine, processors = provenance.machine_facts(), SYSTEM_FOLDER / "devices/system"
    packages = processors.glob("cpu/cpu[0-9]*/topology/physical_package_id")
    huge_pages = network.read_text(SYSTEM_FOLDER / "kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", huge_pages or "")
    return {
        "hostname": machine["hostname"],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": {
            "cpu_model": machine["cpu_model"],
            "sockets": len({network.read_text(package) for package in packages}) or None,
            "cores": psutil.cpu_count(logical=False),
            "hardware_threads": psutil.cpu_count(),
            "numa_nodes": len(list(processors.glob("node/node[0-9]*"))) or None,
            "memory_bytes": machine["memory_bytes"],
            "gpus": [asdict(gpu) for gpu in gpus()],
        },
        "network": network_facts(),
        "software": software_facts(),
        "partitions": slurm_partitions(),
        "settings": {
            "environment": provenance.environment(os.environ),
            "cpu_governor": network.read_text(processors / "cpu/cpu0/cpufreq/scaling_governor"),
            "transparent_hugepages": chosen[1] if chosen else None,
            "file_system": network.file_system(folder),
        },
    }


def gpus() -> list[nvidia.Gpu]:
    """Return the GPUs as nvidia-smi lists them, or else as torch does."""
    with suppress(RuntimeError):
        if listed := nvidia.gpus():
            return listed
    torch = _torch()
    if torch is None or not torch.cuda.is_available():
        return []
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [nvidia.Gpu(device.name, device.total_memory, None) for device in devices]


def network_facts(classes: Path = network.CLASSES) -> dict[str, Any]:
    """Return `interfaces` (name and Gbit/s of each device) and `infiniband` (each port)."""
    devices = [link for link in network.interfaces(classes) if link.is_hardware]
    return {
        "interfaces": [
            {"name": link.name, "speed_gbit_per_s": link.speed_gbit_per_s} for link in devices
        ],
        "infiniband": [asdict(port) for port in network.infiniband_ports(classes)],
    }


def software_facts() -> dict[str, Any]:
    """Return the versions of the system, of torch and what it was built with, and of the tools."""
    apptainer = _version_words("apptainer") or _version_words("singularity")
    slurm = _version_words("sinfo")
    versions = provenance.software_facts()
    return {
        **{name: versions[name] for name in ("os", "kernel", "driver", "python")},
        **_torch_versions(),
        "torchvision": versions["torchvision"],
        "mpi": _version_line("mpirun", "--version"),
        "ucx": _version_line("ucx_info", "-v"),
        "slurm": slurm[-1] if slurm else None,
        "apptainer": apptainer[-1] if apptainer else None,
        "lockstep": provenance.lockstep_version(),
        "lockstep_commit": provenance.git_facts(content.IMPORTABLE_FROM)["git_commit"],
    }


def _version_words(program: str) -> list[str]:
    """Return the words of a program's version text; empty if it is absent."""
    return (answer([program, "--version"], COMMAND_TIMEOUT_S) or "").split()


def _version_line(program: str, option: str) -> str | None:
    """Return a program's version text up to the line with a number; None if it is absent."""
    match = re.match(r"\D*\d.*", answer([program, option], COMMAND_TIMEOUT_S) or "")
    return " ".join(match[0].replace("#", "").split()) if match else None


def _torch_versions() -> dict[str, Any]:
    """Return torch's version, the libraries of its build, and the usable back ends."""
    names = ("torch", "cuda", "cudnn", "nccl", "cuda_usable", "gloo_usable")
    torch = _torch()
    if torch is None:
        return dict.fromkeys(names)
    distributed = torch.distributed.is_available()
    facts = provenance.torch_facts() | {
        "cuda_usable": torch.cuda.is_available(),
        "gloo_usable": distributed and torch.distributed.is_gloo_available(),
    }
    return {name: facts[name] for name in names}


def _torch() -> Any:
    """Return torch, or None if it is missing or its libraries do not load."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def slurm_partitions() -> list[dict[str, Any]]:
    """Return the cluster's partitions as sinfo lists them; empty without Slurm."""
    names = ("partition", "num_nodes", "cpus_per_node", "memory_mib_per_node", "gres")
    listing = answer(["sinfo", "--noheader", "--format=%P|%D|%c|%m|%G"], COMMAND_TIMEOUT_S) or ""
    return [
        {
            name: None if cell == "(null)" else cell
            for name, cell in zip(names, line.split("|"), strict=True)
        }
        for line in listing.splitlines()
    ]


def known_gpus() -> str:
    """Return a Markdown table of the GPUs with a known datasheet, which MFU needs."""
    names = ("fp32", "tf32", "bf16", "fp16")
    peaks = (f"{name}, TFLOP/s" for name in names)
    heads = ("SMs", "Memory, GB", "Memory, GB/s", "TDP, W", "Link, GB/s")
    rows = [("GPU", *peaks, "Source of peaks", *heads, "Source of memory, TDP and link")]
    rows.append(("---",) * len(rows[0]))
    for device in hardware.DEVICES:
        rates = [device.peak_flop_per_s.get(name) for name in names]
        figures = (
            *(device.num_sms, device.memory_gb, device.memory_gb_per_s),
            *(device.tdp_w, device.link_gb_per_s),
        )
        rows.append((
            device.name,
            *(DASH if rate is None else f"{rate / TERA:g}" for rate in rates),
            device.source,
            *(DASH if figure is None else f"{figure:g}" for figure in figures),
            device.board_source or DASH,
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def to_markdown(facts: Mapping[str, Any]) -> str:
    """Return the entry of one machine: a second-level section with its host name as heading."""
    machine, software, settings = facts["hardware"], facts["software"], facts["settings"]
    alike = Counter((gpu["name"], gpu["memory_bytes"]) for gpu in machine["gpus"])
    cards = [f"{number} x {name}, {_gib(memory)}" for (name, memory), number in alike.items()]
    usable = [
        f"{name}: {'yes' if software[f'{name}_usable'] else 'no'}" for name in ("cuda", "gloo")
    ]
    ports = [
        (f"{port['device']} port {port['port']}", _present(port, "link_layer", "rate", "state"))
        for port in facts["network"]["infiniband"]
    ]
    sections: dict[str, list[tuple[str, Any]]] = {
        "Hardware": [
            *((title, machine[name]) for title, name in PROCESSOR.items()),
            ("Memory", _gib(machine["memory_bytes"])),
            ("GPUs", "; ".join(cards) or "none"),
        ],
        "Network": [
            (f"Interface {link['name']}", speed and f"{speed:g} Gbit/s")
            for link in facts["network"]["interfaces"]
            for speed in [link["speed_gbit_per_s"]]
        ]
        + (ports or [("InfiniBand", "no InfiniBand")]),
        "Software": [
            *((title, software[name]) for title, name in SOFTWARE.items()),
            ("Usable from torch", software["torch"] and ", ".join(usable)),
            *((title, software[name]) for title, name in TOOLS.items()),
            ("Lockstep", _present(software, "lockstep", "lockstep_commit")),
        ],
        "Slurm partitions": [
            (
                part["partition"],
                f"{part['num_nodes']} nodes of {part['cpus_per_node']} CPUs, "
                f"{part['memory_mib_per_node']} MiB, GRES {part['gres'] or 'none'}",
            )
            for part in facts["partitions"]
        ],
        "Settings": [
            ("CPU governor", settings["cpu_governor"]),
            ("Transparent huge pages", settings["transparent_hugepages"]),
            ("File system of the working directory", settings["file_system"]),
            *sorted(settings["environment"].items()),
        ],
    }
    text = f"## {facts['hostname']}\n\nRead on {facts['date']}.\n"
    for title, rows in sections.items():
        if rows:
            text += f"\n### {title}\n\n| Fact | Value |\n|---|---|\n"
            text += "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in rows)
    return text


def _cell(value: Any) -> str:
    """Return a value as escaped table text, a dash if unknown."""
    text = " ".join(str("" if value is None else value).split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") or DASH


def _gib(size_bytes: int | None) -> str:
    return DASH if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"


def _present(facts: Mapping[str, Any], *names: str) -> str | None:
    """Return the facts that are not None, joined."""
    return ", ".join(str(facts[name]) for name in names if facts[name]) or None


def merge_entry(text: str, entry: str) -> str:
    """Return a SYSTEM.md in which an entry replaces the one of the same host, or is added."""
    head, *entries = re.split(r"^(?=## )", text or TITLE, flags=re.MULTILINE)
    heading = entry.partition("\n")[0]
    places = [i for i, old in enumerate(entries) if old.partition("\n")[0].rstrip() == heading]
    if places:
        entries[places[0]] = entry
    else:
        entries.append(entry)
    return "\n\n".join(part.strip("\n") for part in (head, *entries) if part.strip()) + "\n"
