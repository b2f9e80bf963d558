"""Whether manifests have the schema of a release of Kubernetes: schema.py SWAGGER MANIFEST... Keys that the schema has not are wrong."""

import json
import sys

import jsonschema
import yaml


def strict(definitions: dict) -> dict:
    for schema in definitions.values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    # A quantity is a number, too, and what is a number or a word says that by its format.
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer"]}
    return definitions


definitions = strict(json.load(open(sys.argv[1]))["definitions"])
kinds = {(k["group"], k["version"], k["kind"]): name for name, schema in definitions.items() for k in schema.get("x-kubernetes-group-version-kind", [])}
for path in sys.argv[2:]:
    for manifest in yaml.safe_load_all(open(path)):
        group, _, version = ("/" + manifest["apiVersion"]).rpartition("/")
        name = kinds[group.strip("/"), version, manifest["kind"]]
        jsonschema.validate(manifest, {"$ref": f"#/definitions/{name}", "definitions": definitions})
    print(f"{path}: has the schema")
