#!/usr/bin/env bash
# The first process of a cluster, started by up.sh in namespaces of its own: prepares them, starts the parts of the
# cluster, and stays. Inside, the cluster's state folder is /run/cluster, a part's log is /var/log/PART.log and its
# process number /run/PART.pid.
. "$(dirname "$0")/settings.sh"
parts=$1

network() {
  ip link set lo up
  # No dummy device everywhere; one end of a pair serves as well.
  ip link add node0 type veth peer name node0-peer
  ip link set node0-peer up
  ip address add $address/24 dev node0
  ip link set node0 up
  # The programs take the address of the default route for the node's.
  ip route add default dev node0
  echo 1 >/proc/sys/net/ipv4/ip_forward
}

# Nothing that the parts write lands in the machine's own folders.
mounts() {
  mount --make-rshared /
  mount -t tmpfs run /run
  mkdir -p /run/cluster /var/lib/kubelet
  mount --bind "$state" /run/cluster
  mount --bind "$state/kubelet" /var/lib/kubelet
  mount --bind "$state/log" /var/log
  names
  settings_of_the_kernel
}

# Who is asked for names; /etc/resolv.conf may be a link into the /run that is hidden now.
names() {
  local file
  file=$(readlink -m /etc/resolv.conf)
  mkdir -p "$(dirname "$file")"
  [ -e "$file" ] || : >"$file"
  mount --bind "$state/resolv.conf" "$file"
}

# The kubelet would set these for the whole machine. It leaves them alone when it reads what it wants.
settings_of_the_kernel() {
  local setting
  for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
    echo "${setting#*=}" >"/run/kernel-${setting#*=}"
    mount --bind "/run/kernel-${setting#*=}" "/proc/sys/${setting%=*}"
  done
}

start() {
  "$@" >"/var/log/$1.log" 2>&1 &
  echo $! >"/run/$1.pid"
}

control_plane() {
  # Data that a crash of the machine may take: the cluster ends with it anyway.
  start etcd --data-dir etcd --unsafe-no-fsync --log-level warn
  start kube-apiserver --etcd-servers http://127.0.0.1:2379 \
    --advertise-address $address --service-cluster-ip-range 10.96.0.0/16 \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --audit-policy-file audit.yaml --audit-log-path /var/log/audit.log \
    --client-ca-file pki/ca.crt --tls-cert-file pki/apiserver.crt --tls-private-key-file pki/apiserver.key \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file pki/sa.key --service-account-signing-key-file pki/sa.key \
    --kubelet-client-certificate pki/admin.crt --kubelet-client-key pki/admin.key \
    --kubelet-certificate-authority pki/ca.crt --kubelet-preferred-address-types InternalIP \
    --requestheader-client-ca-file pki/front-proxy-ca.crt --requestheader-allowed-names front-proxy \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file pki/front-proxy.crt --proxy-client-key-file pki/front-proxy.key
  start kube-controller-manager --kubeconfig kube-controller-manager.conf --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file pki/sa.key --root-ca-file pki/ca.crt \
    --flex-volume-plugin-dir /run/cluster/volume-plugins \
    --horizontal-pod-autoscaler-sync-period 1s --horizontal-pod-autoscaler-downscale-stabilization 5s
  start kube-scheduler --kubeconfig kube-scheduler.conf --leader-elect=false
}

node() {
  start containerd --config containerd.toml
  # The kubelet gives up when this is missing.
  until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
  start coredns -conf Corefile
  start kube-proxy --config kube-proxy.yaml --hostname-override node1
  start kubelet --config kubelet.yaml --kubeconfig kubelet.conf --node-ip $address --hostname-override node1 \
    --tls-cert-file pki/kubelet-server.crt --tls-private-key-file pki/kubelet-server.key
}

hostname node1
mounts
network
cd /run/cluster || exit 1
control_plane
[ "$parts" != all ] || node
wait # and reap what the others leave behind
