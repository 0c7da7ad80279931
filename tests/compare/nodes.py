"""``python -m tests.compare.nodes``: a Ray cluster of two nodes, in a process of its own, told what to do in lines: its
arguments are the port for clients and the cores of each node.

It prints its addresses as JSON. ``kill``: the second node dies, as by kill -9; ``add``: another one comes. It ends when
its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else gRPC aborts some of the processes that Ray starts for clients

from ray.cluster_utils import Cluster


def main(port: str, cores: str) -> None:
    node = {"num_cpus": int(cores), "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "ray_client_server_port": int(port)})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    session = Path(second.get_session_dir_path())
    client = f"ray://127.0.0.1:{port}"
    print(json.dumps({"address": cluster.address, "client": client, "logs": str(session / "logs")}), flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(second, allow_graceful=False)
        elif line.strip() == "add":
            second = cluster.add_node(**node)
            cluster.wait_for_nodes()
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
