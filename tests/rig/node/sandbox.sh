# First process of a sandbox: sets up its network and directories, runs the command in the arguments and reaps orphaned
# processes. When it exits, the kernel kills everything in the sandbox, including containers.
#   NODE_ADDRESS   the node's address, which exists only in this network
set -eu

# Puts new entries of a directory into memory. Existing entries stay as they are.
overlay() {
  original=/run/sandbox$1
  mkdir -p "$original"
  mount --rbind "$1" "$original"
  mount -t tmpfs -o mode=0755 tmpfs "$1"
  for entry in "$original"/*; do
    target=$1/${entry##*/}
    if [ -L "$entry" ]; then
      cp -P "$entry" "$target"
      continue
    elif [ -d "$entry" ]; then
      mkdir "$target"
    elif [ -f "$entry" ]; then
      : >"$target"
    else
      continue
    fi
    mount --rbind "$entry" "$target"
  done
}

mount -t tmpfs -o mode=0755 tmpfs /run
mkdir /run/sandbox
overlay /var/lib
overlay /var/log
# Hide these directories also if the machine has them because it is a node itself.
for folder in /var/lib/cni /var/lib/containerd /var/lib/kubelet /var/log/containers /var/log/pods; do
  mkdir -p "$folder"
  mount -t tmpfs -o mode=0755 tmpfs "$folder"
done
# As on a node: containers may request mount propagation.
mount --make-rshared /

# The kubelet requires these values. They are global to the machine, so files with the values cover them.
while IFS== read -r name value; do
  [ -e "/proc/sys/$name" ] || continue
  mkdir -p "/run/sandbox/sysctl/${name%/*}"
  echo "$value" >"/run/sandbox/sysctl/$name"
  mount --bind "/run/sandbox/sysctl/$name" "/proc/sys/$name"
done <<END
vm/overcommit_memory=1
vm/panic_on_oom=0
kernel/panic=10
kernel/panic_on_oops=1
kernel/keys/root_maxkeys=1000000
kernel/keys/root_maxbytes=25000000
END

ip link set lo up
# Not an address of the loopback interface, because pods have their own.
ip link add node0 type bridge
ip address add "$NODE_ADDRESS/24" dev node0
ip link set node0 up
# The kubelet and kube-proxy look up their address by the default route. It leads nowhere.
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

# Not `exec`: this shell must reap orphans.
status=0
"$@" || status=$?
exit "$status"
