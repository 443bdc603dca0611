import argparse
import signal
import sys

from e2e.cluster.cluster import Cluster, default_slot
from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network
from e2e.cluster.slot import Slot


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start a cluster; Ctrl-C ends it")
    up.add_argument("--detach", action="store_true", help="return, and leave the cluster running")
    up.add_argument("--no-node", action="store_true", help="the control plane alone")
    commands.add_parser("down", help="end the cluster and remove all that it made")
    commands.add_parser("status", help="say whether a cluster is running")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if arguments.command == "up":
            return _up(detach=arguments.detach, node=not arguments.no_node)
        slot = Slot(Network(default_slot()))
        return _down(slot) if arguments.command == "down" else _status(slot)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _up(*, detach: bool, node: bool) -> int:
    def say(text: str) -> None:
        print(text, flush=True)

    with Cluster.start(progress=say, keep=detach, node=node) as cluster:
        if node:
            say(f"image: {cluster.image}")
        say(f"export KUBECONFIG={cluster.kubeconfig}")
        if not detach:
            say("Ctrl-C ends the cluster")
            cluster.wait_for_end()
    return 0


def _down(slot: Slot) -> int:
    print("the cluster is gone" if slot.end() else "no cluster is running")
    return 0


def _status(slot: Slot) -> int:
    if not slot.running():
        print("no cluster is running")
        return 1
    print(f"a cluster is running\nexport KUBECONFIG={slot.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
