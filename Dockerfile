# One image for all programs; which one runs is the container's first argument:
# agent, proxy, webhook, scheduler, view, certs, claims or gates.
#
#   docker build --tag gpu-turnstile .
#   docker build --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:... --tag gpu-turnstile .
#
# The same minor version of Python that the tests run on. Say a digest to pin it to the byte.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    SOURCE_DATE_EPOCH=1704067200
WORKDIR /src
COPY deploy/image/requirements.txt deploy/image/build-requirements.txt ./
# What comes from outside is held against its hash, and nothing of it is compiled here.
RUN python -m venv --without-pip /opt/gpu-turnstile \
 && python -m pip --python /opt/gpu-turnstile/bin/python install \
      --require-hashes --only-binary :all: --no-compile --requirement requirements.txt
RUN python -m venv --without-pip /opt/build \
 && python -m pip --python /opt/build/bin/python install \
      --require-hashes --only-binary :all: --requirement build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY agent/ agent/
COPY certs/ certs/
COPY claims/ claims/
COPY gates/ gates/
COPY common/ common/
COPY contract/ contract/
COPY placement/ placement/
COPY proxy/ proxy/
COPY scheduler/ scheduler/
COPY view/ view/
COPY webhook/ webhook/
RUN python -m pip --python /opt/build/bin/python wheel \
      --no-deps --no-build-isolation --wheel-dir /dist . \
 && python -m pip --python /opt/gpu-turnstile/bin/python install \
      --no-deps --no-index --no-compile /dist/*.whl
# The root file system is read-only later. Bytecode that names a hash and not a time is the
# same in every build.
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/gpu-turnstile/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpu-turnstile" \
      org.opencontainers.image.description="Shares GPUs on Kubernetes and never guesses which container an Allocate call is for" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Nothing is installed in a running container. And the base image brings the standard library
# without bytecode: compiled at every start, it took more time than all the rest of the start.
RUN rm -rf /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* \
      /usr/local/lib/python3*/site-packages/* \
 && python -m compileall -q --invalidation-mode unchecked-hash \
      -x '/(idlelib|lib2to3|tkinter|turtledemo)/' /usr/local/lib/python3*
COPY --from=build /opt/gpu-turnstile /opt/gpu-turnstile
ENV PATH=/opt/gpu-turnstile/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONNOUSERSITE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
# Nobody's, and no name is needed for it. The DaemonSets of agent and proxy say root: the
# kubelet's sockets are root's.
USER 65532:65532
EXPOSE 8443 9440 9441
ENTRYPOINT ["python", "-m"]
CMD ["agent", "--help"]
