# Creates the cgroups of a sandbox, waits until its standard input is closed because the process that started it has
# exited, and removes them. It runs outside of the sandbox, so that the cgroups of a killed run are removed, too.
#   $1   name of the cgroups
set -u
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  roots=/sys/fs/cgroup
  # In version 2, controllers of children must be enabled.
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
  done
else
  roots=$(for root in /sys/fs/cgroup/*; do [ -e "$root/cgroup.procs" ] && echo "$root"; done)
fi
for root in $roots; do
  mkdir -p "$root/$1" || exit 1
done
echo created
cat >/dev/null
# The kernel needs time to kill all processes in them.
tries=0
while [ "$tries" -lt 300 ]; do
  remaining=
  for root in $roots; do
    [ -d "$root/$1" ] || continue
    find "$root/$1" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$root/$1" ] && remaining="$remaining $root/$1"
  done
  [ -z "$remaining" ] && exit 0
  tries=$((tries + 1))
  sleep 0.1
done
echo "not removed, because they contain processes:$remaining" >&2
exit 1
