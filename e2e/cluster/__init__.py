from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError

__all__ = ["Cluster", "ClusterError"]
