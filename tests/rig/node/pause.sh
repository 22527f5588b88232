# Builds pause.tar, an OCI archive, from pause.c, access.c and Dockerfile in the current directory.
#   $1   name of the image
set -eu
cc -static -Os -o pause pause.c
cc -static -Os -o access access.c
# A private image store.
buildah() { command buildah --storage-driver vfs --root "$PWD/store" --runroot "$PWD/store-run" "$@"; }
buildah bud --isolation chroot --quiet --tag "$1" .
buildah push --quiet "$1" "oci-archive:$PWD/pause.tar:$1"
