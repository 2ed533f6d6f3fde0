"""The files of deploy/: they are what their programs take, fit each other, and give the service options that it has.

Nothing is started here but the programs that check: no image is built, no container and no cluster runs.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from relograph.serving.config import ServeConfig, named_maps
from test_documents import REPOSITORY, parse_relograph

DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
UNIT = (DEPLOY / "relograph.service").read_text(encoding="utf-8")
REPLICAS = ("relograph-1", "relograph-2")
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS: list[dict[str, Any]] = [
    yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted(KUBERNETES.glob("*.yaml"))
    if path.name != "kustomization.yaml"
]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [document for document in MANIFESTS if document["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    return manifest("Deployment")["spec"]["template"]


def container() -> dict[str, Any]:
    (found,) = pod()["spec"]["containers"]
    return found


def check(program: str, package: str, *arguments: str, cwd: Path = DEPLOY) -> str:
    """What a program says, which has to be content; skips where it is not installed."""
    path = shutil.which(program) or shutil.which(program, path=Path(sys.executable).parent)
    if path is None:
        pytest.skip(f"no {program} on PATH: {package}")
    done = subprocess.run([path, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# The service's options


def unit_command() -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, flags=re.MULTILINE)
    (maps,) = re.findall(r'RELOGRAPH_MAPS="(.*?)"', UNIT)
    return shlex.split(line.replace("$RELOGRAPH_MAPS", maps))[1:]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(COMPOSE["services"]["relograph-1"]["command"], id="compose"),
        pytest.param(container()["args"], id="kubernetes"),
        pytest.param(unit_command(), id="systemd"),
        pytest.param(["serve", "--help"], id="image"),
    ],
)
def test_the_service_is_started_by_options_that_it_has(command: list[str]):
    if "--help" in command:
        assert f"CMD {command}".replace("'", '"') in DOCKERFILE
        return
    options = parse_relograph(command)
    assert set(named_maps(tuple(options["maps"]))) <= {"office", "hall"}
    assert options["keys"] is not None
    assert options["port"] == 8000


def test_the_page_gives_relograph_options_that_it_has():
    page = (REPOSITORY / "docs" / "deploy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```shell\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    # In a container relograph is the entry point: its options follow the name of the image or of the service.
    commands = [
        re.search(r"(?:^|bin/)relograph (.*)|relograph(?::cpu|:cuda|-1) +((?:serve|map) .*)", line) for line in lines
    ]
    given = [shlex.split(found[1] or found[2]) for found in commands if found]
    assert len(given) == 7
    for arguments in given:
        parse_relograph(arguments)


def test_grace_periods_are_longer_than_the_service_takes_to_finish():
    finishes_s = ServeConfig(maps=("office.map",)).shutdown_timeout_s
    assert int(COMPOSE["services"]["relograph-1"]["stop_grace_period"].removesuffix("s")) > finishes_s
    assert int(re.findall(r"TimeoutStopSec=(\d+)s", UNIT)[0]) > finishes_s
    sleep_s = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["spec"]["terminationGracePeriodSeconds"] > finishes_s + sleep_s


def test_the_proxy_lets_through_what_the_service_takes():
    (largest_mb,) = re.findall(r"max_size (\d+)MB", (DEPLOY / "Caddyfile").read_text(encoding="utf-8"))
    assert float(largest_mb) > ServeConfig(maps=("office.map",)).max_body_mb


# The image


def test_the_linter_of_dockerfiles_is_content():
    check("hadolint", "pip install 'relograph[dev]'", "Dockerfile")


def test_the_image_is_of_a_named_version_and_runs_as_nobody_special():
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.1[12]\.\d+-slim-\w+$", DOCKERFILE, flags=re.MULTILINE)
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, flags=re.MULTILINE)
    assert "HEALTHCHECK" in DOCKERFILE


def test_the_image_installs_what_the_package_asks_for():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    torch = next(line for line in project["dependencies"] if line.startswith("torch"))
    assert f'"{torch}"' in DOCKERFILE
    (extras,) = re.findall(r'pip install "\.\[(.*)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE):
        assert all((REPOSITORY / name).exists() for name in copied.split())


def test_the_builder_is_sent_what_is_copied_and_nothing_else():
    taken = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), flags=re.MULTILINE)
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE)
        for name in line.split()
    ]
    assert sorted(taken) == sorted(copied)


# Compose, its proxy and its Prometheus


def test_the_compose_file_is_one_by_its_specification():
    check(
        "check-jsonschema",
        "pip install 'relograph[dev]'",
        *("--builtin-schema", "vendor.compose-spec", "compose.yaml"),
    )


def test_what_the_compose_file_names_is_there():
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", [])) <= set(services)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./secrets/"):  # which the page has its reader make, and git ignores
                page = (REPOSITORY / "docs" / "deploy.md").read_text(encoding="utf-8")
                assert f"mkdir -m 700 secrets {source.removeprefix('./')}" in page
            else:
                assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        tag = service["image"].partition(":")[2]
        assert tag not in ("", "latest")


def test_two_replicas_are_behind_the_proxy_and_watched():
    proxied = re.findall(r"reverse_proxy (.*) \{", (DEPLOY / "Caddyfile").read_text(encoding="utf-8"))
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"][0]
    targets = [f"{name}:8000" for name in REPLICAS]
    assert proxied[0].split() == scraped["static_configs"][0]["targets"] == targets
    assert set(REPLICAS) < set(COMPOSE["services"])


def test_only_the_proxy_and_prometheus_can_be_reached_from_outside():
    published = {name for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"proxy", "prometheus"}
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"]["prometheus"]["ports"])
    outside = {name for name, service in COMPOSE["services"].items() if "outside" in service["networks"]}
    assert outside == published
    assert all(COMPOSE["networks"][name]["internal"] for name in ("front", "back"))


def test_caddy_takes_its_file():
    check("caddy", "apt-get install caddy", "adapt", "--config", "Caddyfile", "--validate")


def test_prometheus_takes_its_files_and_alerts_come_when_they_should():
    package = "apt-get install prometheus"
    check("promtool", package, "check", "config", "prometheus/prometheus.yaml")
    check("promtool", package, "test", "rules", "prometheus/alerts_test.yaml")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]:
        yield from group["rules"]


def test_alerts_ask_for_metrics_and_labels_that_the_service_has():
    from prometheus_client import Counter, Histogram

    from relograph.serving.metrics import Metrics

    labels_by_series: dict[str, set[str]] = {"up": set()}
    for metric in vars(Metrics()).values():
        if hasattr(metric, "_labelnames"):
            suffix = {Counter: "_total", Histogram: "_bucket"}.get(type(metric), "")
            labels_by_series[metric._name + suffix] = {*metric._labelnames, *(["le"] if suffix == "_bucket" else [])}
    named = 0
    for rule in rules():
        for series, matchers in re.findall(r"\b((?:relograph_\w+|up)\b)\{([^}]*\}?[^}]*)\}", rule["expr"]):
            labels = set(re.findall(r"(\w+)\s*=~?", matchers)) - {"job", "instance"}
            assert labels <= labels_by_series[series], rule["alert"]
            named += 1
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in rule["expr"] or label == "instance"
    assert named >= len(list(rules()))


# systemd


def test_systemd_takes_the_unit(tmp_path: Path):
    program = tmp_path / "relograph"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "relograph.service"  # verify wants the program to be there
    unit.write_text(UNIT.replace("/opt/relograph/bin/relograph", str(program)))
    said = check("systemd-analyze", "apt-get install systemd", "verify", str(unit))
    assert "relograph.service" not in said, said


def test_the_unit_is_as_locked_as_the_service_allows():
    said = check(
        *("systemd-analyze", "apt-get install systemd", "security", "--offline=true", "--no-pager"),
        str(DEPLOY / "relograph.service"),
    )
    (exposure,) = re.findall(r"Overall exposure level for relograph\.service: ([\d.]+)", said)
    assert float(exposure) <= 1.5
    for setting in ("DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "CapabilityBoundingSet=\n"):
        assert setting in UNIT


# Kubernetes


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda document: document["kind"])
def test_a_manifest_is_one_by_kubernetes_own_schemas(document: dict[str, Any]):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install 'relograph[dev]'")
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_lists_every_manifest():
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in KUBERNETES.iterdir())


def test_kubectl_puts_the_manifests_together():
    said = check("kubectl", "see kubernetes.io", "kustomize", "kubernetes")
    documents = list(yaml.safe_load_all(said))
    assert len(documents) == len(MANIFESTS)
    assert all(document["metadata"].get("namespace", "relograph") == "relograph" for document in documents)
    images = {
        one["image"]
        for doc in documents
        if doc["kind"] == "Deployment"
        for one in doc["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"relograph:cpu"}


def test_everything_selects_the_pods_of_the_deployment():
    labels = pod()["metadata"]["labels"].items()
    selectors = [
        manifest("Deployment")["spec"]["selector"]["matchLabels"],
        manifest("Service")["spec"]["selector"],
        manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    assert (
        manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"]
        == manifest("Deployment")["metadata"]["name"]
    )


def test_probes_ask_at_addresses_that_the_service_answers_at():
    probes = {container()[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"/healthz", "/readyz"}
    service = (REPOSITORY / "src" / "relograph" / "serving" / "app.py").read_text(encoding="utf-8")
    assert all(f'"{path}",' in service for path in probes)


def test_pods_may_do_nothing_but_their_work():
    assert pod()["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod()["spec"]["automountServiceAccountToken"] is False
    for one in (container(), *pod()["spec"]["initContainers"]):
        locked = one["securityContext"]
        assert locked["readOnlyRootFilesystem"] is True
        assert locked["allowPrivilegeEscalation"] is False
        assert locked["capabilities"] == {"drop": ["ALL"]}


def test_no_secret_is_in_the_repository():
    assert "/deploy/secrets/" in (REPOSITORY / ".gitignore").read_text().splitlines()
    assert "Secret" not in {document["kind"] for document in MANIFESTS}
