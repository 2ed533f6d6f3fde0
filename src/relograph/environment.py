"""What relograph runs on: versions, device, free disk, extras. `relograph doctor` prints it, results carry it."""

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from relograph.errors import ConfigError, RelographError

PURPOSE_BY_EXTRA = {
    "train": "training the networks",
    "export": "exporting a network to ONNX",
    "index": "approximate search in large maps",
    "geometry": "COLMAP models and robust geometric solvers",
    "video": "reading frames from videos",
    "client": "asking a service from Python",
    "serve": "the HTTP service",
    "heic": "photos in HEIC, as phones write them",
    "viewer": "the 3-D viewer",
    "postgres": "maps shared in PostgreSQL",
    "docs": "building the documentation",
    "all": "all of the above",
    "dev": "working on relograph itself",
}
"""What each extra of the package is for, in the order in which they are listed."""


@dataclass(frozen=True)
class Extra:
    """An optional set of packages, and what of it is not there."""

    name: str
    purpose: str
    missing: tuple[str, ...]
    """Requirements that nothing installed meets, as pip writes them: `viser>=0.2.23`."""

    @property
    def is_complete(self) -> bool:
        """Whether every package of the extra is installed in a version that fits."""
        return not self.missing

    @property
    def install_command(self) -> str:
        """The pip line that installs what is missing."""
        return f"pip install 'relograph[{self.name}]'"


@dataclass(frozen=True)
class Device:
    """What torch computes on."""

    kind: str
    """`cuda` or `cpu`, as torch writes it."""
    name: str
    """What the maker calls it, for example `NVIDIA H200` or the CPU's model name."""
    memory_gib: float | None
    """Memory of a GPU, None for a CPU."""


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, None where it is not installed. Nothing is imported.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def extras() -> tuple[Extra, ...]:
    """Every extra of the installed package, with what is missing of it."""
    if installed_version("relograph") is None:
        raise RelographError(
            "Expected an installed package, which knows its extras, found relograph run from a folder of source. "
            "Run: pip install -e ."
        )
    return tuple(
        Extra(name, purpose, tuple(_without_marker(r) for r in _requirements("relograph", name) if not _is_met(r)))
        for name, purpose in PURPOSE_BY_EXTRA.items()
    )


def _requirements(distribution: str, extra: str) -> list[Requirement]:
    """What the distribution asks for with this extra and not without it."""
    requirements = [Requirement(line) for line in importlib.metadata.requires(distribution) or ()]
    return [
        requirement
        for requirement in requirements
        if (marker := requirement.marker) and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
    ]


def _is_met(requirement: Requirement) -> bool:
    version = installed_version(requirement.name)
    if version is None or not requirement.specifier.contains(version, prereleases=True):
        return False
    return all(_is_met(inner) for extra in requirement.extras for inner in _requirements(requirement.name, extra))


def _without_marker(requirement: Requirement) -> str:
    bracket = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{bracket}{requirement.specifier}"


def num_cores() -> int:
    """CPU cores that this process may use; a container or a batch system may grant fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The CPU's model name where the system tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def compute_device(kind: str | None = None) -> Device:
    """The device that torch calls `kind`; without it the first GPU where torch can use one, else the CPU.

    Example:
        >>> compute_device("cpu").kind
        'cpu'
    """
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind is None:
        kind = "cuda" if num_gpus else "cpu"
    if kind == "cpu":
        return Device(kind, cpu_name(), None)
    gpus = ["cuda", *(f"cuda:{index}" for index in range(num_gpus))] if num_gpus else []
    if kind not in gpus:
        raise ConfigError(
            f"Expected a device that torch can use here ({', '.join(['cpu', *gpus])}), found {kind!r}. "
            "See what there is, and why, with: relograph doctor"
        )
    properties = torch.cuda.get_device_properties(kind)
    return Device(kind, properties.name, properties.total_memory / 2**30)


def free_disk_gib(folder: Path) -> float:
    """Space that is left for files in `folder`, in GiB."""
    return shutil.disk_usage(folder).free / 2**30


def default_cache() -> Path:
    """Where what can be made again is kept unless a user says otherwise: decoded photos, rooms, exported networks."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relograph"
