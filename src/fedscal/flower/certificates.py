"""Certificates of a federation: an authority, the server's certificate, and one key per site."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedscal.core import files
from fedscal.core.errors import UsageError, shown

_CLOCKS_DIFFER = timedelta(minutes=10)
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 64
"""What a certificate allows for its first name."""


def make_certificates(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int) -> list[Path]:
    """Make what is not there yet; return the files that were written.

    ``folder`` gets ``ca.crt``, ``ca.key``, ``server.crt``, ``server.key``, and for every site a folder
    with ``key``, ``key.pub`` and a copy of ``ca.crt``: all that the site needs, and nothing else.
    """
    alternatives = [_general_name(host) for host in hosts]
    made = []
    if not (folder / "ca.key").exists():
        made += _make_authority(folder, days)
    if not (folder / "server.key").exists():
        made += _make_server(folder, hosts[0], alternatives, days)
    for site in sites:
        if not (folder / site / "key").exists():
            made += _make_site(folder, site)
    return made


def _general_name(host: str) -> x509.GeneralName:
    """Return an address or a name for a certificate; refuse what cannot stand in one."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not _NAME.fullmatch(host) or len(host) > _LONGEST_NAME:
            raise UsageError(
                f"--host '{shown(host)}' is neither an address nor a machine's name: 1 to {_LONGEST_NAME} "
                "letters (a to z), digits, dots and hyphens."
            ) from None
        return x509.DNSName(host)


def _make_authority(folder: Path, days: int) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedscal federation")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _certificate(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _write_pair(folder / "ca", certificate, key, key)


def _make_server(folder: Path, host: str, alternatives: list[x509.GeneralName], days: int) -> list[Path]:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{folder / 'ca.key'} is not a key that 'fedscal flower certs' made.")
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _certificate(_name(host), authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return _write_pair(folder / "server", certificate, key, signer)


def _make_site(folder: Path, site: str) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return [
        _write(folder / site / "key", _private(key, serialization.PrivateFormat.OpenSSH), secret=True),
        _write(folder / site / "key.pub", public + f" {site}\n".encode()),
        _write(folder / site / "ca.crt", (folder / "ca.crt").read_bytes()),
    ]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
    )


def _write_pair(
    stem: Path,
    certificate: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
) -> list[Path]:
    signed = certificate.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return [
        _write(stem.with_suffix(".crt"), signed),
        _write(stem.with_suffix(".key"), _private(key, serialization.PrivateFormat.PKCS8), secret=True),
    ]


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    files.write_bytes(path, data)  # readable by its owner only until it is known to be no secret
    if not secret:
        os.chmod(path, 0o644)
    return path
