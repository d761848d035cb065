# The image of all components, for Vertex AI Pipelines, Kubeflow Pipelines and Beam workers.
#
#     docker build --tag REGISTRY/cocoflow:VERSION .
#     docker build --tag REGISTRY/cocoflow:VERSION-gpu --build-arg GPU=1 .      with the CUDA libraries: docs/gpu.md
#
# environment.sh installs the same lock as `make env`; the tests run it without Docker, from the built wheel.

ARG PYTHON_IMAGE=python:3.11.10-slim-bookworm@sha256:5148c0e4bbb64271bca1d3322360ebf4bfb7564507ae32dd639322e4952a6b16

FROM ${PYTHON_IMAGE} AS build
ARG GPU=
# Some dependencies of TFX have no wheels and are compiled.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
# Each component's container starts without bytecode of its own, and compiling TFX's takes it 20 seconds.
ENV UV_COMPILE_BYTECODE=1
COPY environment.sh requirements.lock ./
RUN ./environment.sh ${GPU:+--gpu} /opt/cocoflow
COPY . .
RUN /opt/cocoflow/bin/python setup.py --quiet bdist_wheel \
    && ./environment.sh ${GPU:+--gpu} /opt/cocoflow dist/*.whl

FROM ${PYTHON_IMAGE}
RUN useradd --create-home --uid 1000 cocoflow
COPY --from=build /opt/cocoflow /opt/cocoflow
# Starts the image as a worker of Beam (--sdk_container_image); of the same version as the lock's apache-beam.
COPY --from=apache/beam_python3.11_sdk:2.65.0 /opt/apache/beam /opt/apache/beam
# Kubernetes on Google Cloud, and so Vertex AI, mounts the GPU's driver there.
ENV PATH=/opt/cocoflow/bin:$PATH PYTHONUNBUFFERED=1 LD_LIBRARY_PATH=/usr/local/nvidia/lib64
USER cocoflow
WORKDIR /home/cocoflow
ENTRYPOINT ["cocoflow"]
