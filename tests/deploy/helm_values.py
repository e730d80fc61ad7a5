"""Values of the Helm chart: accepted ones, and wrong ones with the fault that helm names."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

CLAIM: Values = {"type": "claim", "accessMode": "ReadWriteOnce"}
KEDA: Values = {"kind": "ScaledObject", "prometheusAddress": "http://prometheus:9090"}

VARIANTS: dict[str, Values] = {
    "default": {},
    "everything": {
        "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"]},
        "model": {"id": "organization/model", "revision": "main"},
        "args": ["--max-total-tokens", "4096", "--json-output"],
        "env": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_off"}],
        "apiKey": {"secretName": "keys"},
        "hubToken": {"secretName": "hub"},
        "gpu": {"count": 2},
        "modelCache": {"type": "claim", "download": True},
        "networkPolicy": {"from": [{"namespaceSelector": {}}]},
        "autoscaling": {"enabled": True},
        "monitoring": {
            "serviceMonitor": True,
            "prometheusRule": True,
            "dashboard": True,
            "labels": {"release": "prometheus"},
        },
        "gateway": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
        "serviceAccount": {"annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
    },
    "keda": {"autoscaling": {"enabled": True, **KEDA}},
    "one writer": {"modelCache": CLAIM, "hubToken": {"secretName": "hub"}},
    "little": {
        "replicas": 3,
        "modelCache": {"type": "ephemeral"},
        "shutdown": {"preStopSeconds": 0, "drainSeconds": 600},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "topologySpread": False,
    },
}

WRONG: list[tuple[Values, str]] = [
    ({"replica": 2}, "'replica' not allowed"),
    ({"image": {"name": "tokenloom"}}, "'name' not allowed"),
    ({"image": {"tag": "latest"}}, "/image/tag"),
    ({"image": {"digest": "sha256:0"}}, "/image/digest"),
    ({"replicas": -1}, "/replicas"),
    ({"replicas": "two"}, "/replicas"),
    ({"args": ["--port=80"]}, "/args/0"),
    ({"args": ["--api-key", "secret"]}, "/args/0"),
    ({"args": ["-g", "5"]}, "/args/0"),
    ({"args": "--json-output"}, "/args"),
    ({"env": [{"name": "PORT", "value": "80"}]}, "/env/0/name"),
    ({"env": [{"name": "API_KEY", "value": "secret"}]}, "/env/0/name"),
    ({"env": [{"name": "A", "value": 1}]}, "/env/0/value"),
    ({"shutdown": {"drainSeconds": "90s"}}, "/shutdown/drainSeconds"),
    ({"startupSeconds": 0}, "/startupSeconds"),
    ({"apiKey": {"value": "secret"}}, "'value' not allowed"),
    ({"hubToken": {"secretName": "Hub_Token"}}, "/hubToken/secretName"),
    ({"resources": {"requests": {"cpu": None}}}, "/resources/requests"),
    ({"resources": {"requests": {"cpu": 0}}}, "/resources/requests/cpu"),
    ({"resources": {"limits": {"memory": "lots"}}}, "/resources/limits/memory"),
    ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "propertyName 'nvidia.com/gpu'"),
    ({"gpu": {"count": 0.5}}, "/gpu/count"),
    ({"modelCache": {"type": "hostPath"}}, "/modelCache/type"),
    ({"modelCache": {"size": "20 GB"}}, "/modelCache/size"),
    ({"modelCache": {"existingClaim": "models"}}, "/modelCache/type"),
    ({"modelCache": {"download": True}}, "/model/id"),
    ({"modelCache": {"download": True}, "model": {"id": "/data/model"}}, "/model/id"),
    (
        {
            "modelCache": {"download": True},
            "model": {"id": "organization/model"},
            "args": ["--huggingface-hub-cache=/data/models"],
        },
        "/args/0",
    ),
    ({"modelCache": CLAIM, "replicas": 2}, "/replicas"),
    ({"modelCache": CLAIM, "autoscaling": {"enabled": True}}, "/autoscaling/enabled"),
    ({"service": {"port": 70000}}, "/service/port"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable"),
    ({"autoscaling": {"kvCacheUsage": 80}}, "/autoscaling/kvCacheUsage"),
    (
        {"autoscaling": {"targetCPUUtilizationPercentage": 80}},
        "'targetCPUUtilizationPercentage' not allowed",
    ),
    (
        {"autoscaling": {"enabled": True, "kind": "ScaledObject"}},
        "/autoscaling/prometheusAddress",
    ),
    ({"monitoring": {"interval": "15"}}, "/monitoring/interval"),
    ({"gateway": {"endpointPicker": {"failureMode": "open"}}}, "/failureMode"),
    ({"podSecurityContext": {"runAsUser": 0}}, "/podSecurityContext/runAsUser"),
    ({"podSecurityContext": {"runAsNonRoot": False}}, "/podSecurityContext/runAsNonRoot"),
]
