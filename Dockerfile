# distprof's analysis in a container, without torch:
#   docker build -t distprof . && docker run --rm -v "$PWD:/work" distprof analyze traces/
# Recording happens in the environment of the training: install the wheel there.
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/distprof \
    && /opt/distprof/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:3.13-slim-bookworm
COPY --from=build /opt/distprof /opt/distprof
RUN useradd --create-home --uid 1000 distprof
USER 1000
ENV PATH=/opt/distprof/bin:$PATH \
    DISTPROF_CACHE_DIR=/tmp/distprof
WORKDIR /work
ENTRYPOINT ["distprof"]
CMD ["--help"]
