"""Scans: sequences through a state of fixed size, such as linear attention and recurrences, one file a mechanism."""

from mereo.mechanisms.scan.aaren import Aaren as Aaren
from mereo.mechanisms.scan.aaren import prefix_attention as prefix_attention
from mereo.mechanisms.scan.base import LinearScan as LinearScan
from mereo.mechanisms.scan.base import ScanState as ScanState
from mereo.mechanisms.scan.lightning import LightningAttention as LightningAttention
from mereo.mechanisms.scan.lightning import decay_slopes as decay_slopes
from mereo.mechanisms.scan.lightning import lightning_attention as lightning_attention
