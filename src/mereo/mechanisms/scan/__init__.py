"""Scans: sequences through a state of fixed size, such as linear attention and recurrences, one file a mechanism."""

from mereo.mechanisms.scan.aaren import Aaren as Aaren
from mereo.mechanisms.scan.aaren import prefix_attention as prefix_attention
from mereo.mechanisms.scan.base import GatedScanMixer as GatedScanMixer
from mereo.mechanisms.scan.base import GatedState as GatedState
from mereo.mechanisms.scan.base import LinearScan as LinearScan
from mereo.mechanisms.scan.base import ScanState as ScanState
from mereo.mechanisms.scan.lightning import LightningAttention as LightningAttention
from mereo.mechanisms.scan.lightning import decay_slopes as decay_slopes
from mereo.mechanisms.scan.lightning import lightning_attention as lightning_attention
from mereo.mechanisms.scan.normalised_attention import NormalisedAttention as NormalisedAttention
from mereo.mechanisms.scan.quasi_lstm import QuasiLSTM as QuasiLSTM
from mereo.mechanisms.scan.rg_lru import RGLRU as RGLRU
from mereo.mechanisms.scan.s6 import S6 as S6
from mereo.mechanisms.scan.ssd import SSD as SSD
