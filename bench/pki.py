"""Keys and certificates for measurements under TLS, with the names that all programs look for."""

import os
import subprocess

from measuring import Lab


def make_credentials(lab: Lab) -> str:
    """A directory with the names that all programs look for."""
    pki = lab.path("pki")
    os.makedirs(pki)
    with open(os.path.join(pki, "keys.psk"), "w", encoding="ascii") as file:
        file.write(f"bench:{os.urandom(32).hex()}\n")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=pki, check=True, stderr=subprocess.DEVNULL)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ca = ["-x509", "-days", "9", "-addext", "basicConstraints=critical,CA:TRUE", "-out", "ca-cert.pem"]
    openssl(*new, "-keyout", "ca-key.pem", "-subj", "/CN=bench", *ca)
    with open(os.path.join(pki, "names"), "w", encoding="ascii") as file:
        file.write("subjectAltName=DNS:localhost\n")
    for end in ("server", "client"):
        openssl(*new, "-keyout", f"{end}-key.pem", "-subj", f"/CN={end}", "-out", "request")
        sign = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "names"]
        openssl("x509", "-req", "-in", "request", "-days", "9", *sign, "-out", f"{end}-cert.pem")
    return pki


def qemu_client(pki: str, way: str, socket: str) -> tuple[list[str], str]:
    """The first words of qemu-img convert, and the image options of the server's export."""
    kind = "tls-creds-psk,username=bench" if way == "psk" else "tls-creds-x509"
    name = "" if way == "psk" else ",tls-hostname=localhost"
    words = ["qemu-img", "convert", "-n", "--object", f"{kind},id=t,endpoint=client,dir={pki}"]
    return words, f"driver=nbd,path={socket},tls-creds=t{name}"
