"""Apache Kafka from its Maven artifacts: one process, broker and controller (KRaft)."""

from __future__ import annotations

import base64
import os
import re
import shutil
import string
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from . import packages, ports
from .base import Command, Service
from .errors import ServiceError
from .settings import FILES, opt_dir
from .shell import run, say

VERSION = "4.3.1"
JAVA_MIN = 17
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
HEAP = "512m"
PROXY_PORT = "RELEVO_SERVICES_KAFKA_PROXY_PORT"
"""Who comes in by the second listener is told this port of loopback for all that follows: a test's proxy is there."""
OWN = "set RELEVO_TEST_KAFKA_URL to a Kafka of your own (kafka://host:port)"
STARTED = "Kafka Server started"  # logged after the broker is unfenced, a moment after its port opens


class Kafka(Service):
    name = "kafka"
    url_variable = "RELEVO_TEST_KAFKA_URL"
    slot = 1
    port_names = ("main", "controller", "proxied")
    start_timeout_s = 90.0

    def install(self) -> None:
        if _java() is None:
            _need(*JAVA_PACKAGES, what=f"Java {JAVA_MIN} or later")
        if not self._libs_complete():
            if shutil.which("mvn") is None:
                _need("maven", what="Maven (mvn)")
            self._fetch_libs()

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {
            "port": self.port(),
            "controller_port": self.port("controller"),
            "proxied_port": self.port("proxied"),
            "proxy_port": os.environ.get(PROXY_PORT, self.port("proxied")),
            "data": self._data,
        }
        for name in ("server.properties", "log4j2.properties"):
            text = (FILES / f"kafka-{name}").read_text()
            (self.folder / name).write_text(string.Template(text).substitute(values))
        if not (self._data / "meta.properties").exists():
            shutil.rmtree(self._data, ignore_errors=True)
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
            run(
                *self._run_class("kafka.tools.StorageTool"),
                *("format", "-t", cluster_id, "-c", self.folder / "server.properties"),
                failing="formatting Kafka's data folder",
                advice=f"Remove {self.folder} and try again, or {OWN}.",
            )

    def command(self) -> Command:
        return Command([*self._run_class("kafka.Kafka", f"-Xms{HEAP}"), self.folder / "server.properties"])

    def ready(self) -> bool:
        try:
            return STARTED in self.log.read_text(errors="replace") and ports.accepts(self.port())
        except FileNotFoundError:
            return False

    def make_url(self, port: int) -> str:
        return f"kafka://127.0.0.1:{port}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _libs(self) -> Path:
        return opt_dir() / f"kafka-{VERSION}"

    def _libs_complete(self) -> bool:
        return (self._libs / ".done").exists()

    def _fetch_libs(self) -> None:
        say(f"fetching Apache Kafka {VERSION} with Maven (44 MB)")
        shutil.rmtree(self._libs, ignore_errors=True)
        self._libs.mkdir(parents=True)
        run(
            *("mvn", "-B", "-q", "-f", FILES / "kafka-pom.xml", f"-Dkafka.version={VERSION}"),
            *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={self._libs}"),
            failing=f"fetching Apache Kafka {VERSION}",
            advice=f"Check that Maven reaches its repository, or {OWN}.",
        )
        (self._libs / ".done").touch()

    def _run_class(self, name: str, *options: str) -> Sequence[str]:
        java = _java()
        if java is None:
            raise ServiceError(f"Java {JAVA_MIN} or later is not installed. Install it, or {OWN}.")
        log_config = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        common = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true", log_config)
        return (java, f"-Xmx{HEAP}", *options, *common, "-cp", f"{self._libs}/*", name)


def _need(*debian_packages: str, what: str) -> None:
    if not packages.can_apt():
        raise ServiceError(f"Kafka needs {what}, which is not installed. Install it, or {OWN}.")
    packages.apt_install(*debian_packages, instead=OWN)


def _java() -> str | None:
    """A Java new enough for Kafka 4: from JAVA_HOME, PATH, or Debian's folder."""
    home = os.environ.get("JAVA_HOME")
    candidates = [f"{home}/bin/java"] if home else []
    candidates += [found] if (found := shutil.which("java")) else []
    candidates += [str(path) for path in sorted(Path("/usr/lib/jvm").glob("*/bin/java"))]
    return next((java for java in candidates if _java_version(java) >= JAVA_MIN), None)


def _java_version(java: str) -> int:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0
