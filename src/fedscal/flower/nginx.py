"""The front as a configuration of nginx, for operators who trust that: the same list and the same bounds."""

from __future__ import annotations

from pathlib import Path

from fedscal.flower import front
from fedscal.flower.endpoint import Endpoint

_TEMPLATE = """\
# Written by 'fedscal flower server --front nginx'; made anew at every start of the server.
worker_processes 1;
pid {state}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {state}/nginx-body;
    proxy_temp_path {state}/nginx-proxy;
    fastcgi_temp_path {state}/nginx-fastcgi;
    uwsgi_temp_path {state}/nginx-uwsgi;
    scgi_temp_path {state}/nginx-scgi;
    limit_conn_zone $binary_remote_addr zone=address:1m;
    upstream superlink {{ server {address}; keepalive 16; }}
    server {{
        listen {host}:{port}{tls};
{certificate}
        limit_conn address {of_one};
        client_max_body_size {body};
        large_client_header_buffers 4 {headers};
        client_header_timeout {header_seconds}s;
        client_body_timeout {body_seconds}s;
        merge_slashes off;
        # The path as it was sent, not as nginx decodes it.
        if ($request_uri !~ "^/v1/fleet/({calls})$") {{ return 403; }}
        if ($request_method != POST) {{ return 403; }}
        location / {{
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ssl_trusted_certificate {ca};
            proxy_ssl_verify on;
            proxy_ssl_name 127.0.0.1;
            proxy_intercept_errors on;
            # 444 closes the connection: Flower's node tries again; an answer of 5xx ends its heartbeat.
            error_page 500 502 503 504 = @drop;
        }}
        location @drop {{ return 444; }}
    }}
}}
"""
_CERTIFICATE = "        ssl_certificate {0}/server.crt;\n        ssl_certificate_key {0}/server.key;"


def nginx_config(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> str:
    """Return the configuration of an nginx that stands before a SuperLink."""
    calls = sorted(path.rpartition("/")[2] for path in front.paths(signed=keys is not None))
    return _TEMPLATE.format(
        state=endpoint.folder,
        address=endpoint.address,
        ca=endpoint.ca,
        host=host,
        port=port,
        tls=" ssl" if keys else "",
        certificate=_CERTIFICATE.format(keys.resolve()) if keys else "",
        calls="|".join(calls),
        connections=2 * front.MAX_CONNECTIONS,
        of_one=front.MAX_CONNECTIONS_OF_ONE,
        body=front.MAX_BODY,
        headers=front.MAX_HEADERS,
        header_seconds=int(front.HEADER_SECONDS),
        body_seconds=int(front.BODY_SECONDS),
    )
