"""FedSCAl: federated source-free domain adaptation of image classifiers."""

__version__ = "0.1.0"
