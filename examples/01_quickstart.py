"""Adapt a source model to unlabelled clients in two other domains, in ten lines of Python."""

import sys
from pathlib import Path

import fedscal

out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart")
spec = fedscal.RunSpec.make(benchmark="digits", source="font", method="fedscal", rounds=4, local_epochs=2)
run = fedscal.adapt(spec, out)
accuracy = run.summary().accuracy
for domain, before in accuracy.source_only.named.items():
    print(f"{domain:10} {before:5.1f} % -> {accuracy.last.of(domain):5.1f} %")
print("report:", fedscal.write_report(run.path))
