"""Users and clusters of kubeconfigs, and what is sent with each."""

import base64
import json
from dataclasses import dataclass, field, replace
from typing import Any

import trustme

from common.apiserver.access import NOBODY, Impersonation

Json = dict[str, Any]
Headers = dict[str, list[str]]

CA = trustme.CA()
USER = CA.issue_cert("u@example.org", common_name="u")
OTHER = trustme.CA()
NAME = "api.example"
"""A name in the server's certificate that is not its address."""

EXEC = "client.authentication.k8s.io/v1"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def credential(status: object, version: str = EXEC) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def printing(status: object, version: str = EXEC, **more: object) -> Json:
    args = [credential(status, version)]
    plugin = {"apiVersion": EXEC, "command": "echo", "args": args, "interactiveMode": "Never"}
    return {"exec": plugin | more}


def printed(text: str) -> Json:
    """Return a user whose plugin prints *text*."""
    return printing({}, command="printf", args=["%s", text])


def bearer(token: str) -> Headers:
    return {"authorization": [f"Bearer {token}"]}


@dataclass
class Row:
    """A user and a cluster of a kubeconfig, flags, and the headers that are sent, or our error.

    ``HOST`` in a field of the cluster is the server's host and port; one that is *plain* has no
    TLS. kubectl does what is *alike*.
    """

    user: Json
    sent: Headers | None = None
    error: str = ""
    cluster: Json = field(default_factory=dict)
    flags: Impersonation = NOBODY
    alike: bool = True
    plain: bool = False


CHAIN, KEY = USER.cert_chain_pems[0].bytes(), USER.private_key_pem.bytes()
CERT = {"client-certificate-data": encoded(CHAIN), "client-key-data": encoded(KEY)}
PRINTED_CERT = {"clientCertificateData": CHAIN.decode(), "clientKeyData": KEY.decode()}
CERT_FILES = {"client-certificate": "u.crt", "client-key": "u.key"}
T = {"token": "t"}
TEXT = {"name": "TEXT", "value": credential({"token": "%s"})}
SCRIPT: Json = {"command": "sh", "args": ["-c", 'printf "$TEXT" x"$A"']}
SCRIPT["env"] = [{"name": "A", "value": "1"}, TEXT]
AS = T | {"as": "alice", "as-groups": ["g1", "g2"], "as-uid": "7"}
AS_SENT = bearer("t") | {"impersonate-user": ["alice"], "impersonate-uid": ["7"]}
CA_DATA = encoded(CA.cert_pem.bytes())
NO_CA = {"certificate-authority": ""}
GROUP_ALONE = "a group, UID or extra field is to be impersonated, but no user: --as is missing"
MISSING = "No such file or directory"
CONTROL = "has a line break or another control character"
UNTRUSTED = "API server: the certificate of SERVER is not trusted: "
GETTING = "API server: getting credentials: "
PLUGIN = f"{GETTING}the credential plugin "
UNUSABLE = f"{PLUGIN}echo returned unusable credentials: "
T1 = bearer("t")


BAD_STATUS: dict[str, tuple[object, ...]] = {
    "status is missing": (None,),
    "status must be an object": ([], "secret"),
    "status has neither token nor clientCertificateData": ({}, {"token": ""}),
    "status.token must be a string": ({"token": 1}, {"token": ["secret"]}),
    f"status.token {CONTROL}": ({"token": "a\nb"}, {"token": "secret\n"}, {"token": "a\0"}),
    "status.clientCertificateData needs status.clientKeyData": (
        T | {"clientCertificateData": "secret"},
    ),
    "status.clientKeyData needs status.clientCertificateData": ({"clientKeyData": "secret"},),
    "status.clientKeyData must be a string": ({"clientCertificateData": "x", "clientKeyData": 1},),
    "status.expirationTimestamp must be a string": (T | {"expirationTimestamp": 1796000000},),
    "status.expirationTimestamp must be a time such as 2026-01-31T12:00:00Z": tuple(
        T | {"expirationTimestamp": each}
        for each in (
            *("", "tomorrow", "2026-12-01", "2026-12-01T00:00:00", "20261201T000000Z"),
            *("2026-13-01T00:00:00Z", "2026-12-01 00:00:00Z", "2026-12-01T00:00:00+0100"),
        )
    ),
}
"""What a plugin prints as ``status``, by our error."""


def refused(user: Json, error: str, **more: Any) -> Row:
    """A row of which nothing is sent."""
    return Row(user, error=error, **more)


def unusable(status: object, error: str) -> Row:
    """A row of a plugin that prints such a ``status``."""
    return refused(printing(status), f"{UNUSABLE}{error}")


def at(error: str = "", **cluster: Any) -> Row:
    """A row of a user with a token, by fields of its cluster."""
    fields = {name.replace("_", "-"): value for name, value in cluster.items()}
    return Row(T, None if error else bearer("t"), error, cluster=fields)


ROWS = {
    # Tokens and passwords.
    "token": Row(T, bearer("t")),
    "token in a file": Row({"tokenFile": "token"}, bearer("tok1")),
    "token and a file": Row(T | {"tokenFile": "token"}, bearer("tok1")),
    "token and no such file": Row(T | {"tokenFile": "absent"}, bearer("t")),
    "no such file": refused(
        {"tokenFile": "absent"}, f"the token file FOLDER/absent cannot be read: {MISSING}"
    ),
    "empty file": refused({"tokenFile": "empty"}, "the token file FOLDER/empty is empty"),
    "line break in a token": refused({"token": "t\n"}, f'user "u": token {CONTROL}'),
    "token beyond ASCII": Row({"token": "ü日"}, bearer("ü日".encode().decode("latin-1"))),
    "token of another type": refused({"token": 123}, 'user "u": token must be a string'),
    "password": Row({"username": "u", "password": "p"}, {"authorization": ["Basic dTpw"]}),
    "password and token": refused(
        T | {"username": "u", "password": "p"},
        'user "u": token must not be given together with username and password',
    ),
    "no credentials": refused({}, 'user "u" has no credentials'),
    "unknown field": Row(T | {"tokn": "x"}, bearer("t")),
    # Client certificates.
    "certificate": Row(CERT, {}),
    "certificate in files": Row(CERT_FILES, {}),
    "certificate and token": Row(CERT | T, bearer("t")),
    "certificate without key": refused(
        {"client-certificate": "u.crt"},
        'user "u": client-certificate needs client-key or client-key-data',
    ),
    "certificate twice": refused(
        CERT | CERT_FILES,
        'user "u": client-certificate must not be given together with client-certificate-data',
    ),
    "certificate that is not there": refused(
        CERT_FILES | {"client-certificate": "no.crt"},
        f'user "u": client-certificate cannot be read: FOLDER/no.crt: {MISSING}',
    ),
    "key that is none": refused(
        CERT_FILES | {"client-key": "token"},
        f"{GETTING}client-certificate and client-key are no PEM certificate with its key without "
        "a password",
    ),
    "certificate that is no base64": refused(
        {"client-certificate-data": "?", "client-key": "u.key"},
        'user "u": client-certificate-data must be base64',
    ),
    # Impersonation.
    "as": Row(AS, AS_SENT | {"impersonate-group": ["g1", "g2"]}),
    "as-user-extra": Row(
        T | {"as": "alice", "as-user-extra": {"Scope": ["a", "b"], "k": ["c"]}},
        bearer("t")
        | {"impersonate-user": ["alice"], "impersonate-extra-k": ["c"]}
        | {"impersonate-extra-scope": ["a", "b"]},
    ),
    "--as instead": Row(
        AS,
        AS_SENT | {"impersonate-user": ["bob"], "impersonate-group": ["g1", "g2"]},
        flags=Impersonation("bob"),
    ),
    "--as-group instead": Row(
        AS, AS_SENT | {"impersonate-group": ["z"]}, flags=Impersonation("", ["z"])
    ),
    "--as beyond ASCII": Row(
        T,
        bearer("t") | {"impersonate-user": ["jürgen".encode().decode("latin-1")]},
        flags=Impersonation("jürgen"),
    ),
    "as-groups alone": refused(T | {"as-groups": ["g"]}, GROUP_ALONE),
    "as-uid alone": refused(T | {"as-uid": "7"}, GROUP_ALONE),
    "--as-group alone": refused(T, GROUP_ALONE, flags=Impersonation("", ["g"])),
    "--as with a line break": refused(
        T,
        f"the header Impersonate-User cannot be sent: its value {CONTROL}",
        flags=Impersonation("a\nb"),
    ),
    "--as in another encoding": replace(
        refused(
            T,
            "the header Impersonate-User cannot be sent: its value is not valid Unicode",
            flags=Impersonation("\udcff"),
        ),
        alike=False,  # it sends the bytes
    ),
    # The server and its certificate.
    "CA in the file": at(certificate_authority="", certificate_authority_data=CA_DATA),
    "CA that is none": at(
        "the CA certificates are no PEM certificates", certificate_authority="token"
    ),
    "another CA": at(f"{UNTRUSTED}*", certificate_authority="other.pem"),
    "CA of the system": at(f"{UNTRUSTED}*", certificate_authority=""),
    "insecure": at(certificate_authority="", insecure_skip_tls_verify=True),
    "insecure with CA": at(
        'cluster "k": insecure-skip-tls-verify must not be given together with '
        "certificate-authority",
        insecure_skip_tls_verify=True,
    ),
    "tls-server-name": at(tls_server_name=NAME),
    "another tls-server-name": at(f"{UNTRUSTED}Hostname mismatch*", tls_server_name="b.example"),
    "disable-compression": at(disable_compression=True),
    "proxy that refuses": at(
        "API server: the proxy does not connect to SERVER: Connection refused",
        proxy_url="http://127.0.0.1:1",
    ),
    "proxy of another kind": at(
        'cluster "k": proxy-url must begin with http://, https:// or socks5://',
        proxy_url="ftp://127.0.0.1:1",
    ),
    "proxy without a host": at('cluster "k": proxy-url must have a host', proxy_url="http://"),
    "proxy with a part of a password as port": at(
        'cluster "k": proxy-url must have a number up to 65535 as port', proxy_url="http://u:s3/@p"
    ),
    "proxy that is no URL": at('cluster "k": proxy-url is not a URL', proxy_url="http://[::1"),
    "no server": at('cluster "k": server is required', server=""),
    "HTTPS:// with a query": at(server="HTTPS://HOST/?x=1#f"),
    # kubectl decides on https before it has read the fields of TLS.
    "no scheme with CA": replace(at(server="HOST"), alike=False),
    "no scheme with CA in the file": replace(
        at(server="HOST/", certificate_authority="", certificate_authority_data=CA_DATA),
        alike=False,
    ),
    "no scheme, insecure": replace(
        at(server="HOST", certificate_authority="", insecure_skip_tls_verify=True), alike=False
    ),
    "no scheme with a certificate": Row(CERT, {}, cluster={"server": "HOST"}, alike=False),
    "no scheme with a certificate alone": refused(
        CERT_FILES,
        f"{UNTRUSTED}*",
        cluster={"server": "HOST", "certificate-authority": ""},
        alike=False,
    ),
    "no scheme, nothing of TLS": Row(T, {}, cluster={"server": "HOST"} | NO_CA, plain=True),
    "no scheme, tls-server-name": Row(
        T, {}, cluster={"server": "HOST", "tls-server-name": NAME} | NO_CA, plain=True
    ),
    "no scheme with a path": at('cluster "k": server must begin *', server="HOST/a"),
    "http to this machine": Row(T, {}, cluster={"server": "http://HOST"}, plain=True),
    "http and exec": Row(
        printing({}, command="false"), {}, cluster={"server": "http://HOST"}, plain=True
    ),
    "http and as": Row(
        T | {"as": "alice"},
        {"impersonate-user": ["alice"]},
        cluster={"server": "http://HOST"},
        plain=True,
    ),
    "no scheme to another machine": refused(
        T,
        'cluster "k": server must begin with https://: credentials are not sent over http',
        cluster={"server": "192.0.2.1:8080"} | NO_CA,
        alike=False,  # it sends the request without them
    ),
    "http to another machine": refused(
        T,
        'cluster "k": server must begin with https://: credentials are not sent over http',
        cluster={"server": "http://192.0.2.1:8080"},
        alike=False,  # it sends the request without them
    ),
    # auth-provider.
    "gcp": refused(
        {"auth-provider": {"name": "gcp", "config": {"access-token": "t"}}},
        'user "u".auth-provider: name must be oidc: use exec instead of other providers',
    ),
    "oidc without a token": refused(
        {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}},
        'user "u".auth-provider: id-token is no token with a time of expiry',
    ),
    # exec.
    "exec": Row(printing(T), bearer("t")),
    "exec with a certificate": Row(printing(PRINTED_CERT), {}),
    "exec beside a token": Row(printing({"token": "x"}) | T, bearer("t")),
    "exec beside an auth-provider": refused(
        printing({"token": "x"}) | {"auth-provider": {"name": "oidc"}},
        'user "u": exec must not be given together with auth-provider',
    ),
    "exec: env": Row(printing({}, **SCRIPT, interactiveMode="IfAvailable"), bearer("x1")),
    "exec: relative path": Row(printing({}, command="./plugin", args=[]), bearer("relative")),
    "exec: default of interactiveMode": Row(
        printing(T, f"{EXEC}beta1", apiVersion=f"{EXEC}beta1", interactiveMode=""), bearer("t")
    ),
    "exec: no interactiveMode": refused(
        printing(T, interactiveMode=""),
        'user "u".exec: interactiveMode must be Never, IfAvailable or Always',
    ),
    "exec: no terminal": refused(
        printing(T, interactiveMode="Always"),
        f"{PLUGIN}echo needs a terminal, and standard input is none",
    ),
    "exec: no command": refused(printing(T, command=""), 'user "u".exec: command is required'),
    "exec: apiVersion": refused(
        printing(T, apiVersion=f"{EXEC}alpha1"),
        f'user "u".exec: apiVersion must be {EXEC} or {EXEC}beta1',
    ),
    "exec: variable without a name": refused(
        printing(T, env=[{"value": "x"}]), 'user "u".exec: env has a variable without a name'
    ),
    "exec: not installed": refused(
        printing({}, command="no-such-plugin", installHint="brew install it"),
        f"{PLUGIN}no-such-plugin is not installed: brew install it",
    ),
    "exec: failure": refused(
        printing({}, command="false"), f"{PLUGIN}false failed with exit code 1"
    ),
    "exec: no kind": Row(printed(credential(T).replace('"ExecCredential"', "null")), bearer("t")),
    "exec: expires": Row(printing(T | {"expirationTimestamp": "2026-01-31T12:00:00.5+01:00"}), T1),
    "exec: has expired": Row(printing(T | {"expirationTimestamp": "2020-01-31T12:00:00Z"}), T1),
    "exec: no time": Row(printing(T | {"expirationTimestamp": None}), T1),
    "exec: YAML": replace(
        refused(
            printed(f"apiVersion: {EXEC}\nstatus: {{token: t}}"), f"{PLUGIN}printf printed no JSON"
        ),
        alike=False,  # it reads it
    ),
    "exec: half a character in a token": replace(
        unusable({"token": "\ud800"}, "status.token must be a string"),
        alike=False,  # it sends another character
    ),
    **{
        f"exec: {error}: {text[:40]}": refused(printed(text), f"{PLUGIN}printf printed {error}")
        for error, texts in {
            "no JSON": ("", "secret", credential(T)[:-1], f"{credential(T)} x", "[" * 100_000),
            "no JSON object": ("[]", "null", "1"),
        }.items()
        for text in texts
    },
    **{
        f"exec: {error}: {status}": unusable(status, error)
        for error, found in BAD_STATUS.items()
        for status in found
    },
    **{
        f"exec: {error}: {text[:40]}": refused(
            printed(text), f"{PLUGIN}printf returned unusable credentials: {error}"
        )
        for error, text in {
            f"apiVersion must be {EXEC}, as in the kubeconfig": credential(T, f"{EXEC}beta1"),
            "apiVersion must be a string": json.dumps({"apiVersion": 1, "status": T}),
            "kind must be ExecCredential": credential(T).replace("ExecCredential", "Secret"),
        }.items()
    },
    **{
        f"exec: no PEM: {certificate[:9]}, {key[:9]}": refused(
            printing({"clientCertificateData": certificate, "clientKeyData": key}),
            f"{GETTING}clientCertificateData and clientKeyData of the credential plugin echo are "
            "no PEM certificate with its key without a password",
        )
        for certificate, key in (("secret", KEY.decode()), (CHAIN.decode(), "secret"))
    },
}
