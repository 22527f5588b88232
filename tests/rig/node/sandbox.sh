# The first process of an enclosure: makes its network and its folders, then runs what the arguments say and collects
# whoever is orphaned. With its end the kernel ends everything in here, containers too.
#   NODE_ADDRESS   the node's address, which this network alone has
set -eu

# What is made anew in this folder is made in memory from now on; what is there stays what it is.
cover() {
  kept=/run/enclosure$1
  mkdir -p "$kept"
  mount --rbind "$1" "$kept"
  mount -t tmpfs -o mode=0755 tmpfs "$1"
  for entry in "$kept"/*; do
    place=$1/${entry##*/}
    if [ -L "$entry" ]; then
      cp -P "$entry" "$place"
      continue
    elif [ -d "$entry" ]; then
      mkdir "$place"
    elif [ -f "$entry" ]; then
      : >"$place"
    else
      continue
    fi
    mount --rbind "$entry" "$place"
  done
}

mount -t tmpfs -o mode=0755 tmpfs /run
mkdir /run/enclosure
cover /var/lib
cover /var/log
# Also where this machine has these folders, as it would if it were a node itself.
for folder in /var/lib/cni /var/lib/containerd /var/lib/kubelet /var/log/containers /var/log/pods; do
  mkdir -p "$folder"
  mount -t tmpfs -o mode=0755 tmpfs "$folder"
done
# As a node has it: containers may ask for mounts that are passed on.
mount --make-rshared /

# The kubelet wants these values. They belong to the machine, so it gets files that hold them instead.
while IFS== read -r name value; do
  [ -e "/proc/sys/$name" ] || continue
  mkdir -p "/run/enclosure/sysctl/${name%/*}"
  echo "$value" >"/run/enclosure/sysctl/$name"
  mount --bind "/run/enclosure/sysctl/$name" "/proc/sys/$name"
done <<END
vm/overcommit_memory=1
vm/panic_on_oom=0
kernel/panic=10
kernel/panic_on_oops=1
kernel/keys/root_maxkeys=1000000
kernel/keys/root_maxbytes=25000000
END

ip link set lo up
# An address that is not of the loopback, since pods have a loopback of their own.
ip link add node0 type bridge
ip address add "$NODE_ADDRESS/24" dev node0
ip link set node0 up
# Without one the kubelet and kube-proxy find no address of their own. It leads nowhere.
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

# Not `exec`: somebody must collect the orphans.
status=0
"$@" || status=$?
exit "$status"
