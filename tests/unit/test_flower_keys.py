"""Keys and certificates: whole, private, kept when they are there; and what the doctor says of them."""

from __future__ import annotations

import os
import queue
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedscal.cli import doctor
from fedscal.core.errors import UsageError
from fedscal.flower.certificates import make_certificates
from fedscal.flower.launch import Address

HOSTS = ["localhost", "127.0.0.1"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder, HOSTS, ["a", "b"], 90)
    return folder


@pytest.fixture(scope="module")
def greeted() -> queue.Queue[bool]:
    """Whether each caller of the server shook hands to the end."""
    return queue.Queue()


@pytest.fixture(scope="module")
def port(keys: Path, greeted: queue.Queue[bool]) -> int:
    """A TLS server with the certificate that was made."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = door.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
                greeted.put(True)
            except OSError:
                connection.close()
                greeted.put(False)

    threading.Thread(target=serve, daemon=True).start()
    return int(door.getsockname()[1])


def test_a_site_s_folder_holds_what_it_needs_and_nothing_else(keys: Path) -> None:
    assert {path.name for path in (keys / "a").iterdir()} == {"key", "key.pub", "ca.crt"}
    assert (keys / "a" / "key").read_bytes() != (keys / "b" / "key").read_bytes()


def test_secrets_are_for_their_owner_only(keys: Path) -> None:
    for name in ("ca.key", "server.key", "a/key"):
        assert (keys / name).stat().st_mode & 0o077 == 0


def test_what_is_there_is_kept(keys: Path) -> None:
    before = (keys / "ca.key").read_bytes(), (keys / "a" / "key").read_bytes()
    made = make_certificates(keys, HOSTS, ["a", "c"], 90)
    assert {path.parent.name for path in made} == {"c"}
    assert ((keys / "ca.key").read_bytes(), (keys / "a" / "key").read_bytes()) == before


@pytest.mark.parametrize("host", HOSTS)
def test_the_authority_vouches_for_the_server(
    keys: Path, port: int, greeted: queue.Queue[bool], host: str
) -> None:
    Address(host, port, keys / "ca.crt").verify_certificate()
    assert greeted.get(timeout=10), "a server that nobody reached is not refused either"


def test_another_authority_does_not(port: int, greeted: queue.Queue[bool], tmp_path: Path) -> None:
    make_certificates(tmp_path, HOSTS, ["a"], 90)
    with pytest.raises(UsageError, match="is refused by"):
        Address("127.0.0.1", port, tmp_path / "ca.crt").verify_certificate()
    assert not greeted.get(timeout=10)


def test_a_server_that_speaks_tls_is_not_met_in_the_clear(port: int) -> None:
    with pytest.raises(UsageError, match=r"speaks TLS: give --key FILE"):
        Address("127.0.0.1", port, None).verify_certificate()


def test_a_certificate_for_another_name_is_refused(tmp_path: Path, keys: Path) -> None:
    make_certificates(tmp_path, ["elsewhere.example"], ["a"], 90)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            context.wrap_socket(door.accept()[0], server_side=True)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    with pytest.raises(UsageError, match=r"127\.0\.0\.1"):
        Address("127.0.0.1", door.getsockname()[1], tmp_path / "ca.crt").verify_certificate()


def test_the_doctor_counts_days_and_looks_who_may_read(keys: Path, tmp_path: Path) -> None:
    assert all(finding.ok for finding in doctor.check_certificates(keys))
    make_certificates(tmp_path, HOSTS, ["a"], 10)
    os.chmod(tmp_path / "a" / "key", 0o644)
    found = {
        Path(finding.check).relative_to(tmp_path).as_posix(): (finding.ok, finding.found)
        for finding in doctor.check_certificates(tmp_path)
    }
    assert found["server.crt"] == (False, "localhost, 127.0.0.1, 9 days left")
    assert found["a/key"] == (False, "others may read it")
    assert found["server.key"] == (True, "for its owner only")


def test_the_doctor_looks_at_server_and_ports(keys: Path, port: int) -> None:
    checked = doctor.check_server(Address("127.0.0.1", port, keys / "ca.crt"))
    found = {finding.check: finding.ok for finding in checked}
    assert found[f"server 127.0.0.1:{port}"]
    assert found["its certificate"]
    assert not doctor.check_port(port).ok


@pytest.mark.parametrize("text", ["", "host", "host:", ":8000", "host:0", "host:x"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        Address.parse(text, None)


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "höst", "x" * 65, "x" * 20_000, "a\nb", "http://a", "-a", "*"]
)
def test_a_host_that_cannot_stand_in_a_certificate_is_refused_before_anything_is_made(
    tmp_path: Path, host: str
) -> None:
    with pytest.raises(UsageError, match="--host") as refused:
        make_certificates(tmp_path / "keys", ["localhost", host], ["a"], 90)
    assert len(str(refused.value)) < 400
    assert not (tmp_path / "keys").exists()


def test_names_wildcards_and_addresses_of_both_kinds_are_hosts(tmp_path: Path) -> None:
    assert make_certificates(tmp_path, ["x" * 64, "*.lab.example", "10.0.0.1", "fe80::1"], ["a"], 90)
