"""What a person reads of a run: metrics, TensorBoard events, progress, summary.json, the final table, report.html."""

from jaxcl.report.files import write_summary
from jaxcl.report.health import Health
from jaxcl.report.metrics import MetricsWriter, read_metrics
from jaxcl.report.page import write_report
from jaxcl.report.progress import Progress, Stages
from jaxcl.report.table import summary_table

__all__ = [
    "Health",
    "MetricsWriter",
    "Progress",
    "Stages",
    "read_metrics",
    "summary_table",
    "write_report",
    "write_summary",
]
