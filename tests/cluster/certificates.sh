#!/usr/bin/env bash
# certificates.sh: keys, certificates and kubeconfigs of a cluster that lives for days, in its state folder.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
umask 077
mkdir -p "$state/pki"
cd "$state/pki"

days=30

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

authority() {
  key "$1"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days $days -out "$1.crt" -addext keyUsage=critical,keyCertSign
}

# certificate NAME AUTHORITY SUBJECT EXTENSIONS
certificate() {
  key "$1"
  openssl req -new -key "$1.key" -subj "$3" |
    openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -days $days -out "$1.crt" -extfile <(printf '%s\n' "$4") 2>/dev/null
}

# kubeconfig NAME: for the client with that certificate.
kubeconfig() {
  cat >"../$1.conf" <<END
apiVersion: v1
kind: Config
current-context: postroom-$cluster
contexts:
- name: postroom-$cluster
  context: {cluster: postroom-$cluster, user: $1}
clusters:
- name: postroom-$cluster
  cluster:
    server: https://127.0.0.1:6443
    certificate-authority-data: $(base64 -w0 ca.crt)
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$1.crt")
    client-key-data: $(base64 -w0 "$1.key")
END
  chmod 600 "../$1.conf"
}

client=extendedKeyUsage=clientAuth
server() { printf 'extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1,IP:%s,%s' "$address" "$1"; }

authority ca
authority front-proxy-ca
key sa
in_cluster=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
certificate apiserver ca /CN=kube-apiserver "$(server "IP:10.96.0.1,DNS:localhost,$in_cluster")"
certificate kubelet-server ca /CN=node1 "$(server DNS:node1)"
certificate front-proxy front-proxy-ca /CN=front-proxy $client
certificate admin ca /O=system:masters/CN=admin $client
certificate kubelet ca /O=system:nodes/CN=system:node:node1 $client
for part in kube-controller-manager kube-scheduler kube-proxy; do
  certificate $part ca /CN=system:$part $client
done
for part in admin kubelet kube-controller-manager kube-scheduler kube-proxy; do
  kubeconfig $part
done
