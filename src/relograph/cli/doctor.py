"""`relograph doctor`: what is there, what is missing, and what to do about it."""

import platform
import shutil
import sys
from pathlib import Path


def doctor_command() -> None:
    """Print versions, device, free disk and extras, and what to do about what is missing."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for title, rows in (("Installation", _installation()), ("Extras", _extras()), ("System tools", _system_tools())):
        console.print(title, style="bold")
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            console.print(f"  {name:<{width}}  {text}", markup=False)


def _installation() -> list[tuple[str, str]]:
    import relograph
    from relograph.environment import free_disk_gib, installed_version

    supported = (3, 11) <= sys.version_info[:2] <= (3, 12)
    folder = Path.cwd()
    return [
        ("relograph", relograph.__version__),
        ("Python", platform.python_version() + ("" if supported else ": tested with 3.11 and 3.12 only")),
        ("torch", installed_version("torch") or "missing: run pip install 'torch>=2.11,<2.14'"),
        ("numpy", installed_version("numpy") or "missing: run pip install numpy"),
        ("device", _device()),
        ("free disk", f"{free_disk_gib(folder):.1f} GiB in {folder}"),
    ]


def _device() -> str:
    try:
        import torch
    except Exception as error:  # a broken torch is what a doctor is called for, and it breaks in many ways
        return f"unknown: torch cannot be imported ({type(error).__name__}: {error}). Install it again."
    from relograph.environment import compute_device, num_cores

    device = compute_device()
    if device.memory_gib is not None:
        return f"{device.name}, {device.memory_gib:.0f} GiB, CUDA {torch.version.cuda}; {num_cores()} CPU cores"
    found = f"CPU, {num_cores()} cores ({device.name})"
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        return f"{found}; there is an NVIDIA driver, but this torch is built for the CPU: install torch's CUDA build"
    return found


def _extras() -> list[tuple[str, str]]:
    from relograph.environment import extras
    from relograph.errors import RelographError

    try:
        found = extras()
    except RelographError as error:
        return [("unknown", str(error))]
    rows: list[tuple[str, str]] = []
    for extra in found:
        rows.append((extra.name, f"{'complete' if extra.is_complete else 'missing':<8}  {extra.purpose}"))
        if not extra.is_complete:
            rows.append(("", f"          {extra.install_command}, which brings {', '.join(extra.missing)}"))
    return rows


def _system_tools() -> list[tuple[str, str]]:
    tools = (("git", "results carry the commit that made them"), ("make", "make demo, make test"))
    return [
        (tool, f"found     {purpose}" if shutil.which(tool) else f"missing   {purpose}; apt-get install {tool}")
        for tool, purpose in tools
    ]
