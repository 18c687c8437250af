"""Write the NetworkPolicies and the table of docs/kubernetes.md from k8s/network.yaml.

Usage: python k8s/network.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
BEGIN, END = "<!-- from k8s/network.yaml -->\n", "<!-- end -->\n"
NOTE = "# From k8s/network.yaml, by `make docs`.\n"
MONITORING = {"headrace.dev/monitoring": "true"}
"""The label of namespaces whose pods may scrape metrics."""


def selector(component: str) -> dict[str, Any]:
    """Select the pods of a component."""
    labels = {"app.kubernetes.io/part-of": "headrace", "app.kubernetes.io/component": component}
    return {"matchLabels": labels}


def policy(name: str, pods: dict[str, Any], **rules: Any) -> dict[str, Any]:
    """Make a policy for some pods; `ingress` and `egress` are its rules."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "podSelector": pods,
            "policyTypes": [way.capitalize() for way in rules],
            **{way: rule for way, rule in rules.items() if rule},
        },
    }


def pods(components: list[str]) -> list[dict[str, Any]]:
    """Name the pods of components as the other side of a rule."""
    return [{"podSelector": selector(component)} for component in components]


def port(number: int, protocol: str = "TCP") -> dict[str, Any]:
    """Name a port."""
    return {"protocol": protocol, "port": number}


def base(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the policies of the base: nothing is allowed but what the table has."""
    everybody = {"matchLabels": {"app.kubernetes.io/part-of": "headrace"}}
    dns = [{"ports": [port(53, "UDP"), port(53)]}]
    made = [
        policy("nothing", everybody, ingress=[], egress=[]),
        policy("names", everybody, egress=dns),
    ]
    for flow in table["flows"]:
        ports = [port(table["ports"][flow["port"]])]
        name = f"{flow['to']}-{flow['port']}"
        made.append(
            policy(
                name, selector(flow["to"]), ingress=[{"from": pods(flow["from"]), "ports": ports}]
            )
        )
        callers = {
            "matchLabels": everybody["matchLabels"],
            "matchExpressions": [
                {"key": "app.kubernetes.io/component", "operator": "In", "values": flow["from"]}
            ],
        }
        made.append(
            policy(f"to-{name}", callers, egress=[{"to": pods([flow["to"]]), "ports": ports}])
        )
    observed = {
        "matchLabels": everybody["matchLabels"],
        "matchExpressions": [
            {"key": "app.kubernetes.io/component", "operator": "In", "values": table["observed"]}
        ],
    }
    scrapers = [{"namespaceSelector": {"matchLabels": MONITORING}}]
    made.append(
        policy(
            "metrics",
            observed,
            ingress=[{"from": scrapers, "ports": [port(table["ports"]["metrics"])]}],
        )
    )
    return made


def outside(flow: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the policy of a component that lets pods out of the cluster."""
    callers = {
        "matchLabels": {"app.kubernetes.io/part-of": "headrace"},
        "matchExpressions": [
            {"key": "app.kubernetes.io/component", "operator": "In", "values": flow["from"]}
        ],
    }
    rules = [
        {
            **({"to": [{"ipBlock": {"cidr": each["within"]}}]} if "within" in each else {}),
            "ports": [port(each["port"])],
        }
        for each in flow["ports"]
    ]
    return [policy(flow["component"], callers, egress=rules)]


def documentation(table: dict[str, Any]) -> str:
    """Make the table for people."""
    rows = ["| from | to | port | what for |", "|---|---|---|---|"]
    for flow in table["flows"]:
        number = table["ports"][flow["port"]]
        rows.append(f"| {', '.join(flow['from'])} | {flow['to']} | {number} | {flow['what']} |")
    for flow in table["outside"]:
        ports = ", ".join(
            f"{each['port']} ({each['within']})" if "within" in each else str(each["port"])
            for each in flow["ports"]
        )
        rows.append(
            f"| {', '.join(flow['from'])} | outside, with the component `{flow['component']}` | "
            f"{ports} | {flow['what']} |"
        )
    [(label, value)] = MONITORING.items()
    rows.append(
        f"| namespaces labelled `{label}={value}` | all but redis | {table['ports']['metrics']} | "
        "metrics |"
    )
    rows.append(f"| the pod's own kubelet | all but redis | {table['ports']['health']} | probes |")
    rows.append("| all | the cluster's name service | 53 | |")
    return "\n".join(rows) + "\n"


def written() -> dict[Path, str]:
    """Give each file that is made from the table, as it should be."""
    table = yaml.safe_load((HERE / "network.yaml").read_text())
    docs = HERE.parent / "docs" / "kubernetes.md"
    before, _, rest = docs.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    files = {
        HERE / "base" / "network.yaml": NOTE + yaml.safe_dump_all(base(table), sort_keys=False),
        docs: before + BEGIN + documentation(table) + END + after,
    }
    for flow in table["outside"]:
        path = HERE / "components" / flow["component"] / "network.yaml"
        files[path] = NOTE + yaml.safe_dump_all(outside(flow), sort_keys=False)
    return files


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
