# docker build --target cpu -t vantage .          for a processor
# docker build --target cuda -t vantage:cuda .    for an NVIDIA GPU
# docker run -p 8000:8000 -v models:/models vantage serve /models/model.gguf --host 0.0.0.0 --api-key KEY

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends make g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /vantage
COPY . .
RUN make dist TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"

FROM build AS build-cuda
RUN make install PREFIX=/opt/vantage

FROM build AS build-cpu
RUN make install PREFIX=/opt/vantage TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"

FROM python:3.12-slim AS base
ENV VANTAGE_HOME=/models/.vantage PYTHONUNBUFFERED=1 PATH=/opt/vantage/bin:$PATH
RUN useradd --create-home vantage && mkdir /models && chown vantage /models
USER vantage
VOLUME /models
EXPOSE 8000
ENTRYPOINT ["vantage"]
CMD ["--help"]

FROM base AS cuda
COPY --from=build-cuda /opt/vantage /opt/vantage

FROM base AS cpu
COPY --from=build-cpu /opt/vantage /opt/vantage
