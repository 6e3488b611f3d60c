#!/usr/bin/env bash
# Run SeaweedFS as an S3 server, or make it ready for the pipeline.
#
#   entrypoint.sh server        listens at ADDRESS (host:port), keeps its data in DATA; INNER_PORTS are those of
#                               its parts: S3 gRPC, master, volume server and filer, each with its gRPC
#   entrypoint.sh prepare       makes the bucket, then checks as the pipeline that the pipeline can work
#
# Two identities: the administrator, and the pipeline, which may read, write and list below S3_BUCKET/S3_PREFIX
# and nothing else. Every other part of the server listens on loopback alone: those ask for no key.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
bucket=${S3_BUCKET:-lake}
prefix=${S3_PREFIX:-flights/}

write_identities() (
  umask 077
  cat >"$1" <<END
{"identities": [
  {"name": "administrator",
   "credentials": [{"accessKey": "${S3_ADMIN_ACCESS_KEY:?}", "secretKey": "${S3_ADMIN_SECRET_KEY:?}"}],
   "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
  {"name": "pipeline",
   "credentials": [{"accessKey": "${S3_PIPELINE_ACCESS_KEY:?}", "secretKey": "${S3_PIPELINE_SECRET_KEY:?}"}],
   "actions": ["Read:$bucket/$prefix*", "Write:$bucket/$prefix*", "List:$bucket/$prefix*"]}
]}
END
)

# The S3 server has a port for administration beside its own, at the same address, that asks for no key. It is
# told to ask for a certificate of this authority, whose own key is forgotten at once: nobody has one.
shut_administration() (
  umask 077
  cd "$1"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=nobody \
    -keyout authority.key -out authority.pem 2>/dev/null
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=s3 \
    -keyout s3.key -out s3.pem 2>/dev/null
  rm authority.key
)

case ${1:?server or prepare?} in
  server)
    state=${STATE:-/run/seaweedfs}
    mkdir -p "${DATA:?}" "$state"
    write_identities "$state/identities.json"
    shut_administration "$state"
    export WEED_GRPC_CA=$state/authority.pem WEED_GRPC_S3_CERT=$state/s3.pem WEED_GRPC_S3_KEY=$state/s3.key
    read -r -a inner <<<"${INNER_PORTS:?}"
    exec weed -logtostderr=true server -dir="$DATA" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false \
      -master.volumeSizeLimitMB=1024 -volume.max=0 -volume.preStopSeconds=1 \
      -s3 -s3.ip.bind="${ADDRESS%:*}" -s3.port="${ADDRESS##*:}" -s3.port.grpc="${inner[0]}" \
      -s3.config="$state/identities.json" -s3.iam=false -s3.port.iceberg=0 -s3.port.lance=0 \
      -master.port="${inner[1]}" -master.port.grpc="${inner[2]}" \
      -volume.port="${inner[3]}" -volume.port.grpc="${inner[4]}" \
      -filer.port="${inner[5]}" -filer.port.grpc="${inner[6]}" \
      -filer.localSocket="$state/filer.sock" -s3.localSocket="$state/s3.sock"
    ;;
  prepare)
    AWS_ACCESS_KEY_ID=${S3_ADMIN_ACCESS_KEY:?} AWS_SECRET_ACCESS_KEY=${S3_ADMIN_SECRET_KEY:?} \
      python "$here/make_bucket.py" "$bucket"
    AWS_ACCESS_KEY_ID=${S3_PIPELINE_ACCESS_KEY:?} AWS_SECRET_ACCESS_KEY=${S3_PIPELINE_SECRET_KEY:?} \
      exec s3commit doctor "s3://$bucket/$prefix"
    ;;
  *) exec "$@" ;;
esac
