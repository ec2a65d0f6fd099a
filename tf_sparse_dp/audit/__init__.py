"""Audits: how large epsilon is at least, by experiment."""

from tf_sparse_dp.audit.canaries import Canaries
from tf_sparse_dp.audit.lower_bound import LowerBound
from tf_sparse_dp.audit.many_runs import many_runs
from tf_sparse_dp.audit.one_run import one_run
from tf_sparse_dp.audit.report import AuditReport

__all__ = ["AuditReport", "Canaries", "LowerBound", "many_runs", "one_run"]
