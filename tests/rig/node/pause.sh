# Makes pause.tar, an OCI archive, of pause.c and Dockerfile here.
#   $1   the image's name
set -eu
cc -static -Os -o pause pause.c
# A store of its own, beside the machine's.
buildah() { command buildah --storage-driver vfs --root "$PWD/store" --runroot "$PWD/store-run" "$@"; }
buildah bud --isolation chroot --quiet --tag "$1" .
buildah push --quiet "$1" "oci-archive:$PWD/pause.tar:$1"
