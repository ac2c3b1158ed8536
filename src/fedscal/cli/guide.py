"""What the help of a command says below its options: examples, the keys that matter, where the rest is."""

from __future__ import annotations

_ALL_KEYS = """
All keys: fedscal keys, those that a word is about: fedscal keys WORD, what a method adds: fedscal keys
--method NAME. They may also stand in a recipe (fedscal init writes one) or the environment: FEDSCAL_SEED=1.
"""
_RUN = """\b
Examples:
  fedscal run                              digits: nothing to download
  fedscal run source=font method=fedloa rounds=20 --out runs/mine
  fedscal run benchmark=photos source=camera-a
  fedscal run source_model=model clients=sites --out runs/sites
  fedscal run --resume runs/mine

\b
Keys that matter most, as they are typed:
  benchmark=photos      data: a folder <domain>/<class>/*, or digits, icons
  source=camera-a       the domain with labels; the others are the clients'
  clients=sites         or sites without labels, sites/<site>/*; source_model=
  source_model=runs/a   a trained model in place of training one
  method=fedsite        see fedscal methods
  model=hf:vit-small    network: convnet, efficientnet-lite0, hf:, timm:
  image_size=160        side of the images that the network sees
  rounds=20             communication rounds
  seed=1                of every random draw
  workers=2             processes side by side; moves no result
"""
_COMPARE = """\b
Examples:
  fedscal compare methods=fedloa,fedscal seeds=0,1,2
  fedscal compare source=font tau_init=0.7,0.8 --baseline fedscal
  fedscal compare benchmark=photos methods=source-only,fedsite --jobs 2
  fedscal compare ablation                 a recipe of the package

\b
Keys that matter most, as they are typed:
  methods=fedloa,fedscal   see fedscal methods
  seeds=0,1,2              several, or nothing can be said about luck
  sources=mnist,font       all domains in turn if none is named
  benchmark=photos         data, as for fedscal run
  rounds=20                and every other key of a run, one value or more
"""
_PRETRAIN = """\b
Examples:
  fedscal pretrain --data photos/camera-a --out model
  fedscal pretrain --data photos source=camera-a image_size=96 --out model
  fedscal pretrain benchmark=digits source=font
  fedscal run source_model=model clients=sites       what it is for

\b
Keys that matter most, as they are typed:
  source=camera-a       the domain with labels, if there are several
  model=hf:vit-small    network: convnet, efficientnet-lite0, hf:, timm:
  image_size=160        side of the images that the network sees
  mirror=no             for images that a mirror makes wrong: letters, sides
  pretrain_epochs=20    passes over the images
"""
_PREDICT = """\b
Examples:
  fedscal predict runs/mine new-images --out answers.csv
  fedscal predict runs/mine photo.jpg
  fedscal predict runs/mine new-images --site clinic-a
  fedscal predict runs/mine/model/source.safetensors new-images

Of a run, the model that it delivers answers; fedscal audit tells how often it is right.
"""
_AUDIT = """\b
Examples:
  fedscal audit runs/mine checked          checked/<site>/<class>/<image>
  fedscal audit model checked --json
  fedscal report runs/mine runs/other      after both were audited on it

Some 50 labelled images a site tell much. The exit code is 0 whatever the verdict.
"""
_EXPORT = """\b
Examples:
  fedscal export runs/mine                 last.onnx and last.md, here
  fedscal export runs/mine --site clinic-a --out clinic-a.onnx
  fedscal export runs/mine --format safetensors --out shelf/mine.safetensors

A file that is there is written over only if it is an earlier export of the same model, or with --force.
"""
_REPRODUCE = """\b
Examples:
  fedscal reproduce office-home --data OfficeHome --estimate
  fedscal reproduce office-home --data OfficeHome seeds=0 methods=fedscal
  fedscal reproduce ablation --data OfficeHome --no-run
  fedscal reproduce --rehearse             every table, on drawn images

Any key of a run may be given; fedscal keys lists them. docs/reproduce.md has what each table needs.
"""
_INIT = """\b
Examples:
  fedscal init photos                      photos/<domain>/<class>/<image>
  fedscal init sites --out sites.toml      sites/<site>/<image>
  fedscal run fedscal.toml rounds=20       what it is for
"""
_REPORT = """\b
Examples:
  fedscal report runs/mine                 runs/mine/report.html
  fedscal report runs/mine runs/other --out both.html
"""
_KEYS = """\b
Examples:
  fedscal keys                             all, in groups
  fedscal keys epoch                       by a word of their name or meaning
  fedscal keys --method fedscal            what a method adds
"""
EPILOGS = {
    "run": _RUN + _ALL_KEYS,
    "compare": _COMPARE + _ALL_KEYS,
    "pretrain": _PRETRAIN + _ALL_KEYS,
    "predict": _PREDICT,
    "audit": _AUDIT,
    "export": _EXPORT,
    "reproduce": _REPRODUCE,
    "init": _INIT,
    "report": _REPORT,
    "keys": _KEYS,
}
"""By command."""
