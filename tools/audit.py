"""Checks what relograph is installed with: known holes, licences, and that every requirement says what it needs.

    make audit

Advisories come from PyPI through pip-audit, the only part that needs the network. Where it cannot be reached nothing is
known about holes; that is said, and counts as a failure.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = ("dev", "docs", "all")
FREE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software|MPL|Mozilla|HPND|CMU|Zlib|Unlicense|CC0|LGPL|Lesser)(v?\d[\d.]*)?\b",
    re.I,
)
"""Licences under which a user may do with relograph what its own allows; LGPL for packages that are not changed.

They are whole words, perhaps with a version: "Limited" is no MIT.
"""


def requirements(extras: Sequence[str]) -> Iterator[Requirement]:
    """What users of those extras install, beside relograph itself."""
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in extras:
        for line in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if line.name != PROJECT["name"]:
                yield line


def without_floor(lines: Sequence[Requirement]) -> list[str]:
    """Requirements that do not say from which version on they hold.

    Example:
        >>> without_floor([Requirement("numpy>=1.26"), Requirement("torch<3"), Requirement("rich")])
        ['torch', 'rich']
    """
    return [line.name for line in lines if not any(part.operator in (">=", "==", "~=") for part in line.specifier)]


def installed_with(lines: Sequence[Requirement]) -> dict[str, metadata.Distribution]:
    """Every package that is here because of these requirements, by its name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(line.name, extra) for line in lines for extra in (*line.extras, "")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of an extra, or a system, that is not this one
            continue
        for line in map(Requirement, found[name].requires or ()):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                waiting += [(line.name, inner) for inner in (*line.extras, "")]
    return found


def licence(package: metadata.Distribution) -> str:
    """The licence as the package says it, in a few words; empty where it does not."""
    about = package.metadata
    classifiers = [line for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    names = ", ".join(line.rpartition("::")[2].strip() for line in classifiers)
    told = about.get("License-Expression") or names or about.get("License") or ""
    return " ".join(told.split())[:80]


def advisories() -> str | None:
    """What pip-audit found wrong, in one line each; None where nothing is."""
    options = ["--local", "--skip-editable", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([sys.executable, "-m", "pip_audit", *options], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return f"expected advisories from PyPI, found: {' '.join(done.stderr.split())[-300:]}"
    checked = [package for package in packages if "vulns" in package]
    if not checked:
        return f"expected advisories from PyPI, found that it cannot be reached: {len(packages)} packages are unchecked"
    holes = [
        f"{package['name']} {package['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'none'}"
        for package in checked
        for hole in package["vulns"]
    ]
    return "\n".join(holes) or None


def main() -> int:
    lines = list(requirements([name for name in PROJECT["optional-dependencies"] if name not in NOT_FOR_USERS]))
    packages = installed_with(lines)
    problems = [f"{name}: expected a lowest version, found none" for name in without_floor(lines)]
    for name, package in sorted(packages.items()):
        told = licence(package)
        if not FREE.search(told):
            problems.append(f"{name}: expected a licence that is known to be free, found {told or 'none'!r}")
    sys.stdout.write(f"{len(packages)} packages: licences and lowest versions checked\n")
    if found := advisories():
        problems.append(found)
    sys.stdout.write("\n".join(problems or ["nothing wrong"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
