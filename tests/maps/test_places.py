"""Where a map is: what users type, and what of it is shown."""

from pathlib import Path

import pytest

from relograph.errors import ConfigError
from relograph.maps.places import PostgresAddress, parse_place


@pytest.mark.parametrize("folder", ["kitchen.map", "/maps/kitchen", "a:b", "C:/maps", "postgresql"])
def test_what_is_no_address_is_a_folder(folder: str):
    assert parse_place(folder) == Path(folder)
    assert parse_place(Path(folder)) == Path(folder)


@pytest.mark.parametrize("address", ["postgresql://host/map", "postgres://host/map"])
def test_both_names_of_postgresql_are_known(address: str):
    assert parse_place(address) == PostgresAddress(address)
    assert parse_place(PostgresAddress(address)) == PostgresAddress(address)


def test_other_addresses_are_refused_without_being_repeated():
    with pytest.raises(ConfigError, match="found an address of mysql://") as caught:
        parse_place("mysql://ada:secret@host/map")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://ada:secret@host:5432/map", "postgresql://ada@host:5432/map"),
        (
            "postgresql://ada:secret@a:1,b:2/map?target_session_attrs=any",
            "postgresql://ada@a:1,b:2/map?target_session_attrs=any",
        ),
        ("postgresql://ada:se%40cret@host/map", "postgresql://ada@host/map"),
        ("postgresql://ada:se@cret@host/map", "postgresql://ada@host/map"),
        ("postgresql://ada:se/cret@host/map", "postgresql://ada@host/map"),
        ("postgresql://:secret@/map?host=/run/pg", "postgresql:///map?host=/run/pg"),
        ("postgresql://host/map?user=ada&password=secret", "postgresql://host/map?user=ada"),
        ("postgresql://host/map?sslpassword=secret", "postgresql://host/map"),
        ("postgresql://ada@host/map", "postgresql://ada@host/map"),
        ("postgresql:///map", "postgresql:///map"),
    ],
)
def test_an_address_is_shown_without_its_password(uri: str, shown: str):
    address = PostgresAddress(uri)
    assert str(address) == address.shown == shown
    for word in ("secret", "se%40cret", "se@cret", "se/cret", "cret"):
        assert word not in repr(address)
        assert word not in f"{address}"


@pytest.mark.parametrize("password", ["secret", "se%40cret", "se@cret", "se%2Fcret"])
def test_messages_are_cleaned_of_the_password_and_put_on_one_line(password: str):
    address = PostgresAddress(f"postgresql://ada:{password}@host/map")
    meant = password.replace("%40", "@").replace("%2F", "/")
    said = address.clean(f'invalid password "{meant}"\n\tin {password}, host "cret"')
    assert meant not in said
    assert password not in said
    assert "\n" not in said
    assert said.startswith('invalid password "***" in ***')
