"""RabbitMQ from Debian's package, with an epmd of its own: RabbitMQ's would outlive it, on everybody's port."""

from __future__ import annotations

import shlex
import shutil
import socket
from pathlib import Path

from . import packages, ports
from .base import Command, Service
from .errors import ServiceError

OWN = "set RELEVO_TEST_RABBITMQ_URL to a RabbitMQ of your own (amqp://user:password@host:port/vhost)"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH insists on the user rabbitmq
GREETING = b"AMQP\x00\x00\x09\x01"

# The server's own script waits for the VM; epmd must end with it.
RUN = """\
epmd -address 127.0.0.1 -port {epmd} & names=$!
{server} & server=$!
trap 'kill -TERM $server' TERM INT
wait $server; wait $server; code=$?
kill $names
exit $code
"""


class RabbitMQ(Service):
    name = "rabbitmq"
    url_variable = "RELEVO_TEST_RABBITMQ_URL"
    slot = 2
    port_names = ("main", "epmd", "distribution")
    start_timeout_s = 90.0

    def install(self) -> None:
        if SERVER.exists() and shutil.which("epmd"):
            return
        if not packages.can_apt():
            raise ServiceError(f"RabbitMQ is not installed. Install rabbitmq-server, or {OWN}.")
        packages.apt_install("rabbitmq-server", instead=OWN)

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port()}",
            "disk_free_limit.absolute": "50MB",
            "loopback_users": "none",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "512MB",
        }
        (self.folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.folder / "enabled_plugins").write_text("[].\n")

    def command(self) -> Command:
        env = {
            "HOME": str(self.folder),  # where the cookie goes
            "RABBITMQ_NODENAME": f"relevo{self.port()}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_DIST_PORT": str(self.port("distribution")),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.port("epmd")),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2",
        }
        script = RUN.format(epmd=self.port("epmd"), server=shlex.quote(str(SERVER)))
        return Command(["/bin/sh", "-c", script], env=env)

    def ready(self) -> bool:
        """The server answers a client's greeting: its port opens last, but a connection may wait in the backlog."""
        if not ports.accepts(self.port()):
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.port()), timeout=5.0) as connection:
                connection.sendall(GREETING)
                return connection.recv(1) == b"\x01"  # a method frame: Connection.Start
        except OSError:
            return False

    def make_url(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/"
