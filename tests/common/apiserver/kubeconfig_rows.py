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


def refused(user: Json, error: str, **more: Any) -> Row:
    """A row of which nothing is sent."""
    return Row(user, error=error, **more)


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
    "exec: nothing in it": refused(
        printing({}), f"{PLUGIN}echo returned neither a token nor a certificate"
    ),
    "exec: certificate without key": refused(
        printing(T | {"clientCertificateData": "x"}),
        f"{PLUGIN}echo returned only one of certificate and key",
    ),
    "exec: another version": refused(
        printing(T, f"{EXEC}beta1"), f"{PLUGIN}echo did not return an ExecCredential of {EXEC}"
    ),
    "exec: no JSON": refused(
        printing({}, args=["secret"]), f"{PLUGIN}echo printed no ExecCredential"
    ),
    "exec: line break in a token": refused(
        printing({"token": "a\nb"}),
        f"{GETTING}the header Authorization cannot be sent: its value {CONTROL}",
    ),
}
