# One image per service, chosen by SERVICE: provisioner, weight-calculator, lease-broker or simulator. For example:
# docker build --build-arg SERVICE=provisioner --build-arg PORT=7301 --tag slipway-provisioner:0.1.0 .
# With --build-arg EXTRAS="aws terraform" the provisioner has the providers `aws` and `terraform`, too.
ARG PYTHON_IMAGE=python:3.14.7-slim-trixie

FROM ghcr.io/astral-sh/uv:0.13.8 AS uv

FROM ${PYTHON_IMAGE} AS build
# Slipway lives in one folder, given as an argument: `make compose-check` builds the image under another one.
ARG PREFIX=/opt/slipway
COPY --from=uv /uv /bin/uv
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 UV_NO_PROGRESS=1
WORKDIR /src
RUN uv venv --quiet --no-project --relocatable "$PREFIX"
# Third-party packages first: this layer changes only with the lock, and all images share it.
COPY requirements.services.lock ./
RUN uv pip sync --quiet --python "$PREFIX" --require-hashes requirements.services.lock
# Packages of the extras, separated by spaces: their locks contain only what the lock above lacks.
ARG EXTRAS=
COPY requirements.aws.lock requirements.terraform.lock requirements.redis.lock ./
RUN for extra in $EXTRAS; do \
        uv pip install --quiet --python "$PREFIX" --no-deps --require-hashes --requirements "requirements.$extra.lock" \
        || exit 1; \
    done
ARG SERVICE
COPY libs/api libs/api
COPY libs/common libs/common
COPY libs/terraform libs/terraform
COPY services/$SERVICE services/$SERVICE
# Slipway's own packages, without asking an index or resolving again. `slipway-service` is the name for CMD, which takes
# no build arguments.
RUN case " $EXTRAS " in *" terraform "*) ours=./libs/terraform ;; esac \
    && uv pip install --quiet --python "$PREFIX" --no-deps --no-index --no-sources \
        ./libs/api ./libs/common ${ours:+"$ours"} "./services/$SERVICE" \
    && ln -s "slipway-$SERVICE" "$PREFIX/bin/slipway-service" \
    && mkdir -p "owned/$SERVICE"

FROM ${PYTHON_IMAGE}
ARG PREFIX=/opt/slipway
ARG SERVICE
ARG PORT
LABEL org.opencontainers.image.title="slipway-$SERVICE" \
      org.opencontainers.image.description="Slipway keeps fleets of short-lived machines at the size their queues ask for" \
      org.opencontainers.image.licenses="MPL-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build $PREFIX $PREFIX
COPY LICENSE $PREFIX/share/doc/slipway/LICENSE
# The folder of the simulator's ledger. A volume mounted there takes over its owner.
COPY --from=build --chown=10001:10001 /src/owned /var/lib/slipway
ENV PATH="$PREFIX/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp \
    SLIPWAY_HOST=0.0.0.0 SLIPWAY_PORT=$PORT
USER 10001:10001
WORKDIR /tmp
EXPOSE $PORT
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["python", "-m", "slipway_common.web.healthcheck"]
CMD ["slipway-service"]
