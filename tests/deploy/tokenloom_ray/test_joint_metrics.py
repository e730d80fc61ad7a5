"""Metrics of several replicas."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tokenloom_ray.joint_metrics import join_metrics
from tokenloom_router.metrics import Metrics

HARD = """# HELP a_b Of "two" {braces}.
# TYPE a_b gauge
a_b{x="}\\" 1",y=""} 2.0
"""


def test_every_sample_names_its_replica() -> None:
    first, second = Metrics(), Metrics()
    first.engine.restarted()
    joint = join_metrics({"r1": first.render().decode(), "r2": second.render().decode()})
    families = list(text_string_to_metric_families(joint))
    assert len({family.name for family in families}) == len(families)
    assert all("replica" in sample.labels for family in families for sample in family.samples)
    assert 'tgi_engine_restarts{replica="r1"} 1.0' in joint.splitlines()
    assert 'tgi_engine_restarts{replica="r2"} 0.0' in joint.splitlines()
    one = first.render().decode().splitlines()
    num_comments = sum(line.startswith("#") for line in one)
    assert len(joint.splitlines()) == num_comments + 2 * (len(one) - num_comments)


def test_labels_with_braces_and_quotes_are_kept() -> None:
    assert join_metrics({"r": HARD}).splitlines()[2] == 'a_b{replica="r",x="}\\" 1",y=""} 2.0'


def test_no_replica_has_no_metrics() -> None:
    assert join_metrics({}) == ""
