"""Operators of other domains, rewritten to standard ones before anything is differentiated.

`registry` says what is known of a domain, `walk` goes through a model. The functions themselves are in `graph/contrib/`
(onnxruntime's own) and `graph/ml/` (classic models).
"""

from onward.graph.rewriting.registry import DOMAINS, Domain, RefusedError, Rewriter, refusal
from onward.graph.rewriting.walk import rewrite

__all__ = ["DOMAINS", "Domain", "RefusedError", "Rewriter", "refusal", "rewrite"]
