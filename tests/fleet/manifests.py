"""Checks of the manifests in dist/fleet, see `manifests`."""

import pathlib
import re
import sys

import kubernetes_validate
import yaml

#: Releases of Kubernetes whose schemas count: the oldest that is maintained, and the newest.
RELEASES = ["1.31", "1.34"]
FOLDER = pathlib.Path("dist/fleet")


def kubernetes(path):
    """Checks each document against its kind's schema; no field may be unknown. Returns the documents."""
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    assert documents, f"{path} has no document"
    for document in documents:
        for release in RELEASES:
            kubernetes_validate.validate(document, release, strict=True)
    return documents


def pods(documents):
    """Checks that what a pod mounts is there, and that it ends later than its sessions may take."""
    for document in documents:
        if document["kind"] != "StatefulSet":
            continue
        spec = document["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])}
        for container in spec["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= volumes, f"{mounted - volumes} is mounted, and no volume"
        assert spec["terminationGracePeriodSeconds"] >= 60, "less than sessions have to move away"
        labels = document["spec"]["template"]["metadata"]["labels"]
        for other in documents:
            selector = other["spec"]["selector"]
            selector = selector.get("matchLabels", selector)
            assert selector.items() <= labels.items(), f"{other['kind']} selects other pods: {selector}"
        services = [other["metadata"]["name"] for other in documents if other["kind"] == "Service"]
        assert document["spec"]["serviceName"] in services, "its service is not there"


def schema_refuses():
    """A check that cannot fail is none: a field that is misspelt is refused."""
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"selectors": {}}}
    try:
        kubernetes_validate.validate(wrong, RELEASES[-1], strict=True)
    except kubernetes_validate.ValidationError:
        return
    sys.exit("the schema admits a field that there is not")


def compose(path):
    """Checks that services depend on such as there are, and that volumes with a name are declared."""
    document = yaml.safe_load(path.read_text())
    services, volumes = document["services"], set(document["volumes"])
    for name, service in services.items():
        missing = set(service.get("depends_on", [])) - set(services)
        assert not missing, f"{name} depends on {missing}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith((".", "/")) or source in volumes, f"{name}: volume {source}"


def flags(texts):
    """Checks that every flag of agent-proxy in these texts is one of the program's."""
    source = "".join(path.read_text() for path in pathlib.Path("agent-proxy/src/args").rglob("*.rs"))
    for path in texts:
        for line in path.read_text().splitlines():
            if "agent-proxy" not in line and not line.strip().startswith("- --"):
                continue
            if line.lstrip().startswith("#"):
                continue
            for flag in re.findall(r"--([a-z][a-z-]+)", line):
                field = flag.replace("-", "_")
                assert re.search(rf"\b{field}: ", source), f"{path}: --{flag} is no flag"


def main():
    schema_refuses()
    documents = kubernetes(FOLDER / "kubernetes/nodes.yaml")
    pods(documents)
    compose(FOLDER / "compose.yaml")
    flags([FOLDER / "kubernetes/nodes.yaml", FOLDER / "compose.yaml", FOLDER / "systemd/agent-proxy-node.service"])
    kinds = ", ".join(document["kind"] for document in documents)
    print(f"manifests: {kinds} by the schemas of Kubernetes {' and '.join(RELEASES)}; compose file and units: ok")


main()
