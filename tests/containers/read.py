# SPDX-License-Identifier: Apache-2.0
"""Checks the files of examples/containers by their schemas, and prints what is in them as JSON: usage: read.py FOLDER

For a Python that has PyYAML, kubernetes-validate, compose-pydantic and dockerfile-parse; without them it ends with 77.
"""

import json
import pathlib
import sys

try:
    import kubernetes_validate
    import yaml
    from compose_pydantic import ComposeSpecification
    from dockerfile_parse import DockerfileParser
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)


def main():
    folder = pathlib.Path(sys.argv[1])
    compose = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))
    ComposeSpecification.model_validate(compose)
    resources = list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text("utf-8")))
    for resource in resources:
        kubernetes_validate.validate(resource, "1.30", strict=True)
    image = DockerfileParser(fileobj=open(folder / "Dockerfile", "rb"))
    steps = [(step["instruction"], step["value"]) for step in image.structure]
    json.dump({"compose": compose, "kubernetes": resources, "image": steps}, sys.stdout)


if __name__ == "__main__":
    main()
