"""RabbitMQ from Debian's package, with an epmd of its own: RabbitMQ's would outlive it, on everybody's port."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from pathlib import Path

from . import packages, ports
from .base import Command, Service
from .debian_root import debian_root
from .errors import ServiceError
from .shell import run

OWN = "set RELEVO_TEST_RABBITMQ_URL to a RabbitMQ of your own (amqp://user:password@host:port/vhost)"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH insists on the user rabbitmq
CTL = SERVER.with_name("rabbitmqctl")
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
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port()}",
            "disk_free_limit.absolute": "50MB",
            "loopback_users": "none",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "1GB",
        }
        (self.folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.folder / "enabled_plugins").write_text("[].\n")

    def command(self) -> Command:
        script = RUN.format(epmd=self.port("epmd"), server=shlex.quote(str(SERVER)))
        return Command(["/bin/sh", "-c", script], env=self.environment(str(self.folder)))

    def _start_native(self) -> None:
        super()._start_native()
        done = self.folder / "policy.done"
        if done.exists() or self.optional:
            return
        # Tests leave durable queues behind, which cost memory: those that nobody used for half an hour go.
        policy = ("set_policy", "tests", ".*", '{"expires": 1800000}', "--apply-to", "queues")
        env = {**os.environ, **self.environment(str(self.folder))}
        run(CTL, "-q", *policy, env=env, failing="setting a policy for queues", advice=f"See {self.log}.")
        done.touch()

    def environment(self, folder: str) -> dict[str, str]:
        """``folder``: where the server finds its data."""
        return {
            "HOME": folder,  # where the cookie goes
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"relevo{self.port()}@localhost",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_DIST_PORT": str(self.port("distribution")),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.port("epmd")),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2",
        }

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


class RabbitMQ4(RabbitMQ):
    """RabbitMQ 4.0 of Debian 13, in a folder of its own. Only on request: it is 170 MB and needs root."""

    name = "rabbitmq4"
    url_variable = "RELEVO_TEST_RABBITMQ4_URL"
    slot = 3
    optional = True

    def install(self) -> None:
        own = OWN.replace("RELEVO_TEST_RABBITMQ_URL", self.url_variable)
        debian_root(self.name, "trixie", ("rabbitmq-server",), instead=own)

    def command(self) -> Command:
        own = OWN.replace("RELEVO_TEST_RABBITMQ_URL", self.url_variable)
        root = debian_root(self.name, "trixie", ("rabbitmq-server",), instead=own)
        server = next((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")) / "sbin/rabbitmq-server"
        script = RUN.format(epmd=self.port("epmd"), server=shlex.quote("/" + str(server.relative_to(root))))
        variables = [f"{name}={value}" for name, value in self.environment("/srv/data").items()]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        # The mounts are this process's own and go with it.
        enter = (
            'mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount --bind "$1" "$0/srv/data" '
            '&& root=$0 && shift && exec chroot "$root" env -i "$@"'
        )
        inside = [path, *variables, "/bin/sh", "-c", script]
        return Command(["unshare", "--mount", "sh", "-c", enter, str(root), str(self.folder), *inside])
