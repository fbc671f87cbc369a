# Sourced by the other scripts: which cluster is meant, and where its things are.
#
#   POSTROOM_CLUSTER   its name; clusters of different names run side by side   (test)
#   POSTROOM_CACHE     where the built programs are kept between runs           (~/.cache/postroom)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cluster=${POSTROOM_CLUSTER:-test}
cache=${POSTROOM_CACHE:-$HOME/.cache/postroom}/cluster
bin=$cache/bin
state=/var/tmp/postroom-cluster-$cluster   # all of one cluster; down.sh removes it
group=postroom-$cluster                    # its control group
address=10.88.0.1                          # the node, in the cluster's own network

[[ $cluster =~ ^[a-z0-9]+$ ]] || { printf "POSTROOM_CLUSTER is '%s': use small letters and digits\n" "$cluster" >&2; exit 2; }
export PATH=$bin:$PATH:/usr/sbin:/sbin
export KUBECONFIG=$state/admin.conf

# One control group hierarchy (cgroup v2), or one for each controller (v1).
hierarchies() { awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/mounts; }
