"""Keys: random, shown once, kept as hashes, of two scopes, made and revoked while the service runs."""

import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relograph.cli.app import app
from relograph.errors import ConfigError, DatasetError
from relograph.serving import keys
from relograph.serving.config import ServeConfig
from relograph.serving.keys import KeyRing, create_key, read_keys, revoke_key
from serving.running_services import error_of, running, wait_until


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys, "LOOK_S", 0.0)
    return tmp_path / "keys" / "service.json"


def test_a_key_is_256_random_bits_of_which_the_file_keeps_the_hash(file: Path):
    secrets = {create_key(file, "read")[0] for _ in range(3)}
    assert len(secrets) == 3
    for secret in secrets:
        assert re.fullmatch(r"rg_[A-Za-z0-9_-]{43}", secret)
        assert secret not in file.read_text()
        assert secret.removeprefix("rg_") not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_keys(file)) == 3


def test_only_the_key_itself_is_found(file: Path):
    secret, key = create_key(file, "write", "the robot")
    ring = KeyRing(file)
    assert ring.find(secret) == key
    for other in ("", "rg_", secret[:-1], secret + "x", secret.upper(), key.sha256, key.id, "\ud800"):
        assert ring.find(other) is None


def test_a_key_is_good_until_it_expires(file: Path):
    now = datetime.now(UTC)
    late, _ = create_key(file, "read", expires=now - timedelta(seconds=1))
    soon, _ = create_key(file, "read", expires=now + timedelta(hours=1))
    ring = KeyRing(file)
    assert ring.find(late) is None
    assert ring.find(soon) is not None


def test_nothing_but_a_valid_key_lets_anybody_in(file: Path, kitchen: str):
    secret, key = create_key(file, "read")
    expired, _ = create_key(file, "read", expires=datetime.now(UTC) - timedelta(seconds=1))
    with running(kitchen, keys=file) as service:

        def status(authorization: str, query: str = "") -> int:
            return service.client.get(f"/v1/maps{query}", headers={"Authorization": authorization}).status_code

        assert status(f"Bearer {secret}") == 200
        for other in ("rg_", secret[:-1], secret + "x", secret.upper(), key.sha256, key.id, expired):
            assert status(f"Bearer {other}") == 401
        for unlike in (secret, f"Basic {secret}", f"Bearer{secret}", ""):
            assert status(unlike) == 401
        assert status("", f"?key={secret}&api_key={secret}&access_token={secret}") == 401


def test_a_file_that_is_gone_damaged_or_public_lets_nobody_in(file: Path, kitchen: str):
    secret, _ = create_key(file, "read")
    whole = file.read_text()
    with running(kitchen, keys=file, key=secret) as service:

        def status() -> int:
            return service.client.get("/v1/maps").status_code

        for damaged in ("{}", "[", whole.replace('"read"', '"root"'), whole.replace("keys 1", "keys 9")):
            file.write_text(damaged)
            assert status() == 401
            with pytest.raises(DatasetError, match="expected a file of keys"):
                read_keys(file)
        file.write_text(whole)
        assert status() == 200
        file.chmod(0o644)
        assert status() == 401
        file.chmod(0o600)
        assert status() == 200
        file.unlink()
        assert status() == 401


def test_a_service_does_not_start_by_a_file_that_others_can_read(file: Path, kitchen: str):
    create_key(file, "read")
    file.chmod(0o644)
    with pytest.raises(DatasetError, match="chmod 600"), running(kitchen, keys=file):
        pass


def test_scopes_maps_and_revocation_while_the_service_runs(file: Path, kitchen: str):
    reader, _ = create_key(file, "read")
    writer, writer_key = create_key(file, "write")
    guest, _ = create_key(file, "read", maps=["hall"])
    with running(kitchen, keys=file, allow_writes=True) as service:
        client = service.client

        def status(method: str, path: str, secret: str | None = None) -> int:
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            return client.request(method, path, headers=headers).status_code

        response = client.get("/v1/maps")
        assert error_of(response, 401)[0] == "unauthorized"
        assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/maps/kitchen", "/v1/maps/none", "/v1/maps/kitchen/frames", "/metrics"):
            assert status("GET", path) == 401
            assert status("GET", path, "rg_wrong") == 401
        assert status("POST", "/v1/maps/kitchen/localize") == 401
        for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz"):
            assert status("GET", path) == 200

        assert status("GET", "/v1/maps/kitchen", reader) == 200
        assert status("GET", "/metrics", reader) == 200
        assert status("DELETE", "/v1/maps/kitchen/frames/photo-0.png", reader) == 403
        assert status("DELETE", "/v1/maps/kitchen/frames/photo-0.png", writer) == 204
        assert not client.get("/v1/maps", headers={"Authorization": f"bearer {reader}"}).json()["maps"][0]["writable"]
        assert client.get("/v1/maps", headers={"Authorization": f"Bearer {writer}"}).json()["maps"][0]["writable"]

        hidden, missing = (
            client.get(f"/v1/maps/{name}", headers={"Authorization": f"Bearer {guest}"}) for name in ("kitchen", "none")
        )
        assert hidden.json() == missing.json()
        assert error_of(hidden, 404)[0] == "not_found"
        assert client.get("/v1/maps", headers={"Authorization": f"Bearer {guest}"}).json() == {"maps": []}
        assert status("GET", "/metrics", guest) == 403  # which tells of all maps

        revoke_key(file, writer_key.id)
        assert status("GET", "/v1/maps", writer) == 401
        later, _ = create_key(file, "read")
        assert status("GET", "/v1/maps", later) == 200


def test_readiness_names_maps_only_to_those_who_may_see_them(file: Path, kitchen: str):
    reader, _ = create_key(file, "read")
    with running(kitchen, keys=file) as service:
        (Path(kitchen) / "map.sqlite").rename(Path(kitchen) / "away")
        wait_until(lambda: service.client.get("/readyz").status_code == 503)
        assert service.client.get("/readyz").json() == {"status": "not ready", "not_ready": []}
        known = service.client.get("/readyz", headers={"Authorization": f"Bearer {reader}"})
        assert known.json() == {"status": "not ready", "not_ready": ["kitchen"]}


def test_metrics_may_be_left_open(file: Path, kitchen: str):
    create_key(file, "read")
    with running(kitchen, keys=file, open_metrics=True) as service:
        assert service.client.get("/metrics").status_code == 200
        assert service.client.get("/v1/maps").status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "maps.example.org"])
def test_others_can_reach_a_service_only_with_keys(host: str, file: Path):
    with pytest.raises(ConfigError, match="serve keys create") as refused:
        ServeConfig(maps=("a.map",), host=host)
    assert "\n" not in str(refused.value)
    ServeConfig(maps=("a.map",), host=host, keys=file)
    for loopback in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert ServeConfig(maps=("a.map",), host=loopback).is_loopback


# The commands


def test_keys_are_made_listed_and_revoked_by_command(file: Path):
    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["serve", "keys", *map(str, arguments), "--keys", str(file)])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.stderr

    secret = run("create", "--scope", "write", "--name", "the robot", "--expires", "90d", "--map", "hall").strip()
    key = KeyRing(file).find(secret)
    assert key is not None
    assert (key.scope, key.name, key.maps) == ("write", "the robot", ("hall",))
    days_left = (datetime.fromisoformat(key.expires_utc) - datetime.now(UTC)) / timedelta(days=1)
    assert days_left == pytest.approx(90, abs=0.01)
    run("create", "--expires", "2020-01-31T12:00Z")
    listing = run("list")
    assert secret not in listing
    assert [line.split()[2] for line in listing.splitlines()] == ["valid", "expired"]
    assert "the robot" in listing
    assert "revoked" in run("revoke", key.id)
    assert KeyRing(file).find(secret) is None
    assert "expected the id of a key" in run("revoke", key.id, code=1)
    assert "expected a time" in run("create", "--expires", "soon", code=1)
    assert "expected the name of a served map" in run("create", "--map", "../hall", code=1)
