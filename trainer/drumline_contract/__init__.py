"""The values that operator, agents and ranks exchange. Standard library only, no torch.

* to a pod: its environment (`Env`)
* to a job's agents: the signed generation record (`GenerationRecord`) and save notices (`Notice`)
* from a pod: the agent's status (`AgentStatus`), its termination message (`FinalReport`) and its
  exit code (`ExitCode`)

The settings of a run are here, too, because both sides read them: `config` (every option, its
bounds and defaults), `layout` and `layout_validation` (the part of each rank), `shapes` (sizes and
FLOPs of models), `hardware` (GPUs), `step_figures` (the time of a step by part). `buckets` reads
and writes object stores.

Values from a pod are tenant input to the operator. `AgentStatus.parse` and `FinalReport.parse`
bound the size before parsing, check every type, and raise `ContractError`. Nothing here decides how
to react to a value.

Start with `record` (the input of a pod) and `status` (its output).
"""

from drumline_contract.bucket_places import (
    BUCKET_FORMS,
    BUCKET_PATTERN,
    BUCKET_SCHEMES,
    BUCKET_VARIABLES,
    HUB_PATTERN,
    HUB_READERS,
    HUB_SCHEME,
    KEY_PATTERN,
    SOURCE_FORMS,
    checked_bucket,
    checked_source,
    checkpoint_place,
    without_secrets,
)
from drumline_contract.code_archive import (
    CODE_FOLDER,
    CODE_PART_KEY,
    CODE_PARTS_FOLDER,
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    MAX_CODE_PART_BYTES,
    MAX_CODE_PARTS,
    MAX_UNPACKED_BYTES,
    code_digest,
    link_stays_inside,
)
from drumline_contract.environment import (
    AGENT_PORT,
    GANG_FOLDER,
    SIGNATURE_HEADER,
    STORE_PORT,
    STORE_PORTS,
    TOKEN_FILE,
    TOKEN_FILE_VARIABLE,
    Env,
)
from drumline_contract.exit_codes import ExitCode
from drumline_contract.incidents import MAX_CAUSE_CHARS, FaultClass, Incident, RestoreTier
from drumline_contract.json_fields import MAX_FIGURE, ContractError
from drumline_contract.launch import (
    BUNDLE_FOLDER,
    BUNDLE_SOURCE,
    BUNDLE_TARGET,
    CLIENT_FOLDER,
    MAX_PATTERNS,
    MAX_PRELOADS,
    PROGRESS_GROUPS,
    Launch,
    LaunchSettings,
    NoticeSignal,
)
from drumline_contract.launcher_environment import hostfile_environment, launcher_environment
from drumline_contract.launchers import launcher_of, starts_ranks
from drumline_contract.line_pattern import MAX_PATTERN_CHARS, LinePattern, PatternOp
from drumline_contract.notices import Notice, NoticeAnswer
from drumline_contract.pause import Pause, optional_pause
from drumline_contract.plain_text import plain, plain_lines
from drumline_contract.python_program import (
    INTERPRETER_PATTERN,
    MAX_MODULE_CHARS,
    MODULE_PATTERN,
    PythonProgram,
    is_module_name,
)
from drumline_contract.rank_compute import MAX_COMPUTE_CHARS, ComputePoint
from drumline_contract.record import (
    MAX_BODY_BYTES,
    GenerationRecord,
    Member,
    host_name,
    pod_name,
    sign,
    verify,
)
from drumline_contract.status import (
    MAX_LAYOUT_CHARS,
    MAX_SILENT,
    MAX_SLOW,
    MAX_WAIT_SECONDS,
    AgentPhase,
    AgentStatus,
    FinalReport,
    Progress,
    Remark,
    RemarkKind,
    SilentMember,
    SlowMember,
    most_slow,
)
from drumline_contract.step_parts import StepPart, StepPartSeconds
from drumline_contract.step_series import MAX_SERIES_CHARS, StepPoint

__all__ = [
    "AGENT_PORT",
    "BUCKET_FORMS",
    "BUCKET_PATTERN",
    "BUCKET_SCHEMES",
    "BUCKET_VARIABLES",
    "BUNDLE_FOLDER",
    "BUNDLE_SOURCE",
    "BUNDLE_TARGET",
    "CLIENT_FOLDER",
    "CODE_FOLDER",
    "CODE_PARTS_FOLDER",
    "CODE_PART_KEY",
    "GANG_FOLDER",
    "HUB_PATTERN",
    "HUB_READERS",
    "HUB_SCHEME",
    "INTERPRETER_PATTERN",
    "KEY_PATTERN",
    "MAX_BODY_BYTES",
    "MAX_CAUSE_CHARS",
    "MAX_CODE_BYTES",
    "MAX_CODE_FILES",
    "MAX_CODE_PARTS",
    "MAX_CODE_PART_BYTES",
    "MAX_COMPUTE_CHARS",
    "MAX_FIGURE",
    "MAX_LAYOUT_CHARS",
    "MAX_MODULE_CHARS",
    "MAX_PATTERNS",
    "MAX_PATTERN_CHARS",
    "MAX_PRELOADS",
    "MAX_SERIES_CHARS",
    "MAX_SILENT",
    "MAX_SLOW",
    "MAX_UNPACKED_BYTES",
    "MAX_WAIT_SECONDS",
    "MODULE_PATTERN",
    "PROGRESS_GROUPS",
    "SIGNATURE_HEADER",
    "SOURCE_FORMS",
    "STORE_PORT",
    "STORE_PORTS",
    "TOKEN_FILE",
    "TOKEN_FILE_VARIABLE",
    "AgentPhase",
    "AgentStatus",
    "ComputePoint",
    "ContractError",
    "Env",
    "ExitCode",
    "FaultClass",
    "FinalReport",
    "GenerationRecord",
    "Incident",
    "Launch",
    "LaunchSettings",
    "LinePattern",
    "Member",
    "Notice",
    "NoticeAnswer",
    "NoticeSignal",
    "PatternOp",
    "Pause",
    "Progress",
    "PythonProgram",
    "Remark",
    "RemarkKind",
    "RestoreTier",
    "SilentMember",
    "SlowMember",
    "StepPart",
    "StepPartSeconds",
    "StepPoint",
    "checked_bucket",
    "checked_source",
    "checkpoint_place",
    "code_digest",
    "host_name",
    "hostfile_environment",
    "is_module_name",
    "launcher_environment",
    "launcher_of",
    "link_stays_inside",
    "most_slow",
    "optional_pause",
    "plain",
    "plain_lines",
    "pod_name",
    "sign",
    "starts_ranks",
    "verify",
    "without_secrets",
]
