"""The chart renders valid, restricted manifests that fit the server, and refuses wrong values."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm_chart import (
    CHART,
    DEPLOY,
    Manifests,
    environment,
    helm_template,
    mounts,
    objects,
    pod_spec,
    pods,
    render,
    run,
    server,
)
from tests.deploy.helm_values import CLAIM, KEDA, VARIANTS, WRONG
from tokenloom_engine.checkpoint import HUB_PATTERNS
from tokenloom_router.metrics import Metrics
from tokenloom_server.http_server import LAST_SECONDS
from tokenloom_server.middleware.api_key import OPEN_PATHS
from tokenloom_server.settings import Settings

BASE = DEPLOY / "kustomize/base"
RULES = DEPLOY / "prometheus/tokenloom.rules.yaml"
DASHBOARD = DEPLOY / "grafana/tokenloom.json"
METRIC = re.compile(r"\btgi_\w+")
OF_LIBRARIES = {"HF_HUB_OFFLINE", "HF_TOKEN_PATH", "OTEL_TRACES_SAMPLER"}

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


@pytest.fixture(scope="module", params=VARIANTS)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return render(VARIANTS[request.param])


@pytest.fixture(scope="module")
def everything() -> Manifests:
    return render(VARIANTS["everything"])


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """Names of the server's metrics."""
    lines = Metrics().render().decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line[0] != "#"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_lint(variant: str, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(VARIANTS[variant]))
    result = run("helm", "lint", "--strict", CHART, "--values", values)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_manifests_are_valid(variant: str, tmp_path: Path) -> None:
    if shutil.which("kubernetes-validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    file = tmp_path / "manifests.yaml"
    file.write_text(helm_template(VARIANTS[variant]).stdout)
    result = run("kubernetes-validate", "--strict", file)
    report = result.stdout + result.stderr
    assert result.returncode == 0, report
    assert "passed for resource deployment/tokenloom" in report


def test_manifests_pass_checkov(tmp_path: Path) -> None:
    if shutil.which("checkov") is None:
        pytest.skip("checkov is not installed")
    file = tmp_path / "manifests.yaml"
    file.write_text(helm_template(VARIANTS["everything"]).stdout)
    config = DEPLOY / "helm/checkov.yaml"
    result = run("checkov", "--config-file", config, "--output", "json", "--file", file)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["summary"]["passed"] > 100


@pytest.mark.parametrize(("values", "fault"), WRONG, ids=json.dumps)
def test_wrong_values_are_refused(values: dict[str, Any], fault: str) -> None:
    result = helm_template(values)
    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr
    assert fault in result.stderr


def test_a_flag_of_the_chart_is_refused_in_args_and_env(everything: Manifests) -> None:
    names = set(environment(server(everything))) - OF_LIBRARIES
    assert len(names) > 5
    for name in names:
        flag = f"--{name.lower().replace('_', '-')}"
        for values in ({"args": [f"{flag}=1"]}, {"env": [{"name": name, "value": "1"}]}):
            assert helm_template(values).returncode != 0, values


def test_every_value_has_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


def test_every_variable_is_a_flag_of_the_server(manifests: Manifests) -> None:
    names = set(environment(server(manifests))) - OF_LIBRARIES
    assert {"PORT", "HOSTNAME", "NUM_THREADS", "GRACEFUL_TERMINATION_TIMEOUT"} <= names
    assert names <= {field.upper() for field in Settings.model_fields}


def test_the_grace_period_covers_the_drain(manifests: Manifests) -> None:
    container = server(manifests)
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"] if "lifecycle" in container else 0
    drain = environment(container)["GRACEFUL_TERMINATION_TIMEOUT"]
    assert drain is not None
    grace = pod_spec(manifests)["terminationGracePeriodSeconds"]
    assert grace > sleep + int(drain) + LAST_SECONDS


def test_the_default_drain_is_that_of_the_server() -> None:
    drain = environment(server(render({})))["GRACEFUL_TERMINATION_TIMEOUT"]
    assert drain == str(Settings.model_fields["graceful_termination_timeout"].default)


def test_probes_ask_open_routes_of_the_server_port(manifests: Manifests) -> None:
    container = server(manifests)
    (port,) = container["ports"]
    assert str(port["containerPort"]) == environment(container)["PORT"]
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {port["name"]}
    paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert set(paths.values()) <= OPEN_PATHS


@pytest.mark.parametrize("seconds", [1, 61, 1800])
def test_the_startup_probe_allows_the_seconds_of_the_value(seconds: int) -> None:
    probe = server(render({"startupSeconds": seconds}))["startupProbe"]
    allowed = probe["failureThreshold"] * probe["periodSeconds"]
    assert seconds <= allowed < seconds + probe["periodSeconds"]


def test_every_container_is_restricted(manifests: Manifests) -> None:
    for pod in pods(manifests):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_the_server_has_no_account_token(manifests: Manifests) -> None:
    assert pod_spec(manifests)["automountServiceAccountToken"] is False


def test_every_selector_matches_the_pods_of_one_deployment(manifests: Manifests) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(manifests)]
    found = set()
    for (kind, name), manifest in manifests.items():
        spec = manifest.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if selector is not None:
            found.add(kind)
            wanted = selector.get("matchLabels", selector).items()
            assert sum(wanted <= each.items() for each in labels) == 1, (kind, name)
    assert {"Deployment", "Service"} <= found


def test_the_service_monitor_selects_the_service(everything: Manifests) -> None:
    monitor = everything["ServiceMonitor", "tokenloom"]
    service = everything["Service", "tokenloom"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # Alerts and dashboard select this job.
    assert labels[monitor["spec"]["jobLabel"]] == "tokenloom"
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_secrets_are_files(everything: Manifests) -> None:
    (download,) = pod_spec(everything)["initContainers"]
    container = server(everything)
    for each in (download, container):
        assert all("secretKeyRef" not in variable.get("valueFrom", {}) for variable in each["env"])
    items = {
        volume["name"]: volume["secret"]["items"][0]["path"]
        for volume in pod_spec(everything)["volumes"]
        if "secret" in volume
    }
    key = f"{mounts(container)['api-key']}/{items['api-key']}"
    assert environment(container)["API_KEY_FILE"] == key
    token = f"{mounts(download)['hub-token']}/{items['hub-token']}"
    assert environment(download)["HF_TOKEN_PATH"] == token


def test_the_hub_token_is_only_where_the_model_is_downloaded(everything: Manifests) -> None:
    assert environment(server(everything))["HF_HUB_OFFLINE"] == "1"
    assert "hub-token" not in mounts(server(everything))
    alone = server(render({"hubToken": {"secretName": "hub"}}))
    assert environment(alone)["HF_TOKEN_PATH"] == f"{mounts(alone)['hub-token']}/token"
    assert "HF_HUB_OFFLINE" not in environment(alone)


def test_the_download_fetches_what_the_server_loads(everything: Manifests) -> None:
    (download,) = pod_spec(everything)["initContainers"]
    variables = environment(server(everything))
    assert download["args"] == [
        variables["MODEL_ID"],
        f"--revision={variables['REVISION']}",
        *(f"--include={pattern}" for pattern in HUB_PATTERNS),
    ]
    assert download["image"] == server(everything)["image"]
    # A mirror of the Hub, or a proxy, is a variable.
    assert environment(download)["OTEL_TRACES_SAMPLER"] == variables["OTEL_TRACES_SAMPLER"]
    assert mounts(download)["data"] == mounts(server(everything))["data"]


def test_gpus_are_requested_and_their_nodes_selected(everything: Manifests) -> None:
    spec = pod_spec(everything)
    assert server(everything)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert environment(server(everything))["NUM_SHARD"] == "2"
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true", "disk": "ssd"}
    assert {each["key"] for each in spec["tolerations"]} == {"nvidia.com/gpu", "a"}
    assert mounts(server(everything))["shm"] == "/dev/shm"
    assert "gpu" not in json.dumps(pod_spec(render({})))


@pytest.mark.parametrize(
    ("mode", "strategy"), [("ReadWriteOnce", "Recreate"), ("ReadWriteMany", "RollingUpdate")]
)
def test_two_pods_do_not_share_a_claim_of_one_writer(mode: str, strategy: str) -> None:
    manifests = render({"modelCache": {**CLAIM, "accessMode": mode}})
    assert manifests["Deployment", "tokenloom"]["spec"]["strategy"]["type"] == strategy
    assert manifests["PersistentVolumeClaim", "tokenloom"]["spec"]["accessModes"] == [mode]


def test_an_existing_claim_is_used() -> None:
    manifests = render({"modelCache": {"type": "claim", "existingClaim": "models"}})
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in manifests)
    volume = pod_spec(manifests)["volumes"][0]
    assert volume["persistentVolumeClaim"] == {"claimName": "models"}


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
def test_pods_scale_on_waiting_sequences_and_kv_cache(kind: str, exposed: set[str]) -> None:
    manifests = render({"autoscaling": {**KEDA, "enabled": True, "kind": kind}})
    autoscaler = manifests[kind, "tokenloom"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "tokenloom"
    named = set(METRIC.findall(json.dumps(autoscaler)))
    assert named == {"tgi_queue_size", "tgi_kv_cache_usage"}
    assert named <= exposed
    assert "cpu" not in json.dumps(autoscaler).lower()
    assert "replicas" not in manifests["Deployment", "tokenloom"]["spec"]


def test_the_target_of_the_kv_cache_is_a_share() -> None:
    manifests = render({"autoscaling": {"enabled": True, "kvCacheUsage": 0.75}})
    metrics = manifests["HorizontalPodAutoscaler", "tokenloom"]["spec"]["metrics"]
    targets = {each["pods"]["metric"]["name"]: each["pods"]["target"] for each in metrics}
    assert targets["tgi_kv_cache_usage"]["averageValue"] == "750m"


def test_rules_and_dashboard_are_those_of_deploy(everything: Manifests) -> None:
    rule = everything["PrometheusRule", "tokenloom"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    dashboard = everything["ConfigMap", "tokenloom-dashboard"]["data"]["tokenloom.json"]
    assert json.loads(dashboard) == json.loads(DASHBOARD.read_text())


def test_a_packaged_chart_has_rules_and_dashboard(tmp_path: Path) -> None:
    assert run("helm", "package", CHART, "--destination", tmp_path).returncode == 0
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        for source in (RULES, DASHBOARD):
            member = archive.extractfile(f"tokenloom/files/{source.name}")
            assert member is not None
            assert member.read() == source.read_bytes()


def test_the_endpoint_picker_reads_metrics_of_the_server(
    everything: Manifests, exposed: set[str]
) -> None:
    text = everything["ConfigMap", "tokenloom-endpoint-picker"]["data"]["endpoint-picker.yaml"]
    config = yaml.safe_load(text)
    plugins = {plugin["type"]: plugin.get("parameters") for plugin in config["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    assert engine.pop("name") == plugins["core-metrics-extractor"]["defaultEngine"]
    assert len(engine) == 5
    assert set(engine.values()) <= exposed
    (profile,) = config["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= set(plugins)


def test_the_inference_pool_names_its_picker_and_port(everything: Manifests) -> None:
    pool = everything["InferencePool", "tokenloom"]["spec"]
    assert pool["targetPorts"] == [{"number": server(everything)["ports"][0]["containerPort"]}]
    picker = pool["endpointPickerRef"]
    ports = everything["Service", picker["name"]]["spec"]["ports"]
    assert picker["port"]["number"] in {port["port"] for port in ports}
    (container,) = pod_spec(everything, picker["name"])["containers"]
    assert "--pool-name=tokenloom" in container["args"]
    (rule,) = everything["HTTPRoute", "tokenloom"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", "tokenloom")


def test_the_kustomize_base_renders_the_same() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    result = run("kubectl", "kustomize", BASE)
    assert result.returncode == 0, result.stderr
    command = (BASE / "kustomization.yaml").read_text().splitlines()[1]
    assert objects(result.stdout) == render({}), f"the base is out of date: {command}"
