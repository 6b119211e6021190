"""Attention whose senders are tuples of tokens, one file a mechanism."""

from mereo.mechanisms.attention.higher_order.tensor_attention import TensorAttention as TensorAttention
from mereo.mechanisms.attention.higher_order.tensor_attention import polynomial_error as polynomial_error
from mereo.mechanisms.attention.higher_order.tensor_attention import tensor_attention as tensor_attention
