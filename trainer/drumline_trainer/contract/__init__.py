"""What the operator and the pods of a job say to each other. Standard library only.

Three kinds of words:

* the environment the operator puts into a pod (`Env`),
* the signed generation record the operator pushes to a job's agents (`GenerationRecord`),
* what comes back: the agent's status (`AgentStatus`), the last words of a pod
  (`FinalReport`, its termination message) and the exit codes (`ExitCode`).

Everything that comes back is tenant input to the operator: `AgentStatus.parse` and
`FinalReport.parse` bound its size before parsing it, check every type, and raise `ContractError`.
"""

from drumline_trainer.contract.incidents import (
    MAX_CAUSE_CHARS,
    FaultClass,
    Incident,
    RestoreTier,
)
from drumline_trainer.contract.json_fields import (
    MAX_FIGURE,
    ContractError,
)
from drumline_trainer.contract.notices import (
    Notice,
    NoticeAnswer,
)
from drumline_trainer.contract.record import (
    MAX_BODY_BYTES,
    GenerationRecord,
    Member,
)
from drumline_trainer.contract.signature import (
    sign,
    verify,
)
from drumline_trainer.contract.status import (
    MAX_FINAL_REPORT_BYTES,
    MAX_INCIDENTS,
    MAX_SILENT,
    MAX_WAIT_SECONDS,
    AgentPhase,
    AgentStatus,
    FinalReport,
    Progress,
    SilentMember,
)
from drumline_trainer.contract.words import (
    AGENT_PORT,
    GANG_FOLDER,
    SIGNATURE_HEADER,
    STORE_PORT,
    STORE_PORTS,
    TOKEN_FILE,
    Env,
    ExitCode,
    host_name,
    pod_name,
)

__all__ = [
    "AGENT_PORT",
    "GANG_FOLDER",
    "MAX_BODY_BYTES",
    "MAX_CAUSE_CHARS",
    "MAX_FIGURE",
    "MAX_FINAL_REPORT_BYTES",
    "MAX_INCIDENTS",
    "MAX_SILENT",
    "MAX_WAIT_SECONDS",
    "SIGNATURE_HEADER",
    "STORE_PORT",
    "STORE_PORTS",
    "TOKEN_FILE",
    "AgentPhase",
    "AgentStatus",
    "ContractError",
    "Env",
    "ExitCode",
    "FaultClass",
    "FinalReport",
    "GenerationRecord",
    "Incident",
    "Member",
    "Notice",
    "NoticeAnswer",
    "Progress",
    "RestoreTier",
    "SilentMember",
    "host_name",
    "pod_name",
    "sign",
    "verify",
]
