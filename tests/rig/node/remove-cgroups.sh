# Makes the control groups of an enclosure, waits for the end of its standard input, which is the end of who started
# this, and removes them. Alone of all it is outside, so that a run that is killed leaves none behind.
#   $1   their name
set -u
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  roots=/sys/fs/cgroup
  # Version 2 hands a controller down only where that is asked for.
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
  done
else
  roots=$(for root in /sys/fs/cgroup/*; do [ -e "$root/cgroup.procs" ] && echo "$root"; done)
fi
for root in $roots; do
  mkdir -p "$root/$1" || exit 1
done
echo made
cat >/dev/null
# The kernel takes its time to end everybody in there.
tries=0
while [ "$tries" -lt 300 ]; do
  left=
  for root in $roots; do
    [ -d "$root/$1" ] || continue
    find "$root/$1" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$root/$1" ] && left="$left $root/$1"
  done
  [ -z "$left" ] && exit 0
  tries=$((tries + 1))
  sleep 0.1
done
echo "not removed, somebody is still in there:$left" >&2
exit 1
