from adapters import FaultTolerance
from adapters import FaultTolerence  # mypy: attr-defined; pyright: reportAttributeAccessIssue
from adapters.huggingface import protect
from adapters.lightning import FaultToleranceCallback
from straggler import Detector, StragglerPlugin
from straggler import Detecter  # mypy: attr-defined; pyright: reportAttributeAccessIssue

FaultTolerance(autoresum=True)  # mypy: call-arg; pyright: reportCallIssue
FaultTolerance(api="section")  # mypy: arg-type; pyright: reportArgumentType
FaultTolerance("ft_state.json")  # mypy: call-arg; pyright: reportCallIssue
FaultTolerance().step()  # mypy: call-arg; pyright: reportCallIssue
FaultTolerance().checkpoint(3, kind="saving")  # mypy: arg-type; pyright: reportArgumentType
FaultToleranceCallback(True)  # mypy: call-arg; pyright: reportCallIssue
protect(None, calculate_timeout=True)  # mypy: call-arg; pyright: reportCallIssue
Detector.initialize(report_interval=60)  # mypy: call-arg; pyright: reportCallIssue
Detector.initialize(scoring="best")  # mypy: arg-type; pyright: reportArgumentType
Detector.detection_section("a", kind="both")  # mypy: arg-type; pyright: reportArgumentType
StragglerPlugin(stop_if_detected="no")  # mypy: arg-type; pyright: reportArgumentType
