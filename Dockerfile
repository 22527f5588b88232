# The operator's image: one static program and nothing else.
#   docker build .      also builds the program; add --platform linux/amd64,linux/arm64 for both
#   make image          uses a program that was built outside: stage `prebuilt`, which needs no other image
ARG RUST_VERSION=1.95.0

# Common base of both images. It contains no CA certificates: the operator verifies the API server
# with the certificate in the pod's ServiceAccount or in the kubeconfig, calls no other HTTPS
# server, and does not use NFS over TLS.
FROM scratch AS base
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nfs-operator" \
      org.opencontainers.image.description="Turns NFS exports into self-service Kubernetes storage, without mounts or privileges" \
      org.opencontainers.image.source="https://github.com/nfs-operator/nfs-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Numeric, so that the kubelet can verify that it is not root.
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/nfs-operator"]
CMD ["run"]

# The build context contains only amd64/nfs-operator or arm64/nfs-operator.
FROM base AS prebuilt
ARG TARGETARCH
COPY ${TARGETARCH}/nfs-operator /nfs-operator

# Cross-compiles on the build platform for the target architecture.
FROM --platform=${BUILDPLATFORM} docker.io/library/rust:${RUST_VERSION}-bookworm AS build
ARG TARGETARCH
ENV XDG_CACHE_HOME=/cache
WORKDIR /source
RUN case "$(dpkg --print-architecture)-${TARGETARCH}" in \
      amd64-arm64) packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;; \
      arm64-amd64) packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" ;; \
      *) packages="musl-tools" ;; \
    esac && apt-get update && apt-get install -y --no-install-recommends ${packages}
COPY . .
# Dependencies are compiled once for each architecture and stay in the builder's cache.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/cache/nfs-operator \
    --mount=type=cache,target=/source/target,id=nfs-operator-${TARGETARCH} \
    image/program "${TARGETARCH}" release /nfs-operator

FROM base AS image
COPY --from=build /nfs-operator /nfs-operator
