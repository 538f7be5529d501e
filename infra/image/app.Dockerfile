# The image of an app: Workhorse's own, what the app needs beside it, and the app's modules.
# docker build -f infra/image/app.Dockerfile --build-arg APP=shop.jobs:app -t shop:42 path/to/shop

ARG WORKHORSE=workhorse:0.1.0
FROM ${WORKHORSE}
ARG APP
USER 0:0
COPY . /app
# With a lock file of your own, add --require-hashes.
RUN if [ -f /app/requirements.txt ]; then \
      pip --python /opt/workhorse/bin/python install --no-cache-dir -r /app/requirements.txt; \
    fi \
 && python -m compileall -q --invalidation-mode unchecked-hash /app
USER 10001:10001
ENV WORKHORSE_APP=${APP}
