{{/*
Kinds that wait for a queue beside Jobs and JobSets: where CEL finds their switch, their pod
templates and all else that the operator must not change. OBJ is an object. The operator has the same
table in drumline/kube/workload_kinds.py.
*/}}
{{- define "drumline.workloadKinds" -}}
RayCluster:
  group: ray.io
  plural: rayclusters
  suspend: OBJ.spec.?suspend
  cluster: OBJ.spec
  makers: [RayJob, RayService]
RayJob:
  group: ray.io
  plural: rayjobs
  suspend: OBJ.spec.?suspend
  cluster: OBJ.spec.rayClusterSpec
  makers: [RayCronJob]
  hasCluster: has(OBJ.spec.rayClusterSpec)
  fields: [entrypoint, runtimeEnvYAML, metadata, clusterSelector, submitterPodTemplate, submitterConfig, submissionMode, shutdownAfterJobFinishes, ttlSecondsAfterFinished, activeDeadlineSeconds, backoffLimit, managedBy, deletionStrategy, jobId, entrypointNumCpus, entrypointNumGpus, entrypointResources]
PyTorchJob:
  group: kubeflow.org
  plural: pytorchjobs
  suspend: OBJ.spec.?runPolicy.?suspend
  replicas: OBJ.spec.pytorchReplicaSpecs
  fields: [elasticPolicy, nprocPerNode]
MPIJob:
  group: kubeflow.org
  plural: mpijobs
  suspend: OBJ.spec.?runPolicy.?suspend
  replicas: OBJ.spec.mpiReplicaSpecs
  fields: [slotsPerWorker, sshAuthMountPath, launcherCreationPolicy, mpiImplementation, runLauncherAsWorker]
{{- end -}}

{{/* The pod templates of an object; takes kind (a row) and obj. */}}
{{- define "drumline.workloadTemplates" -}}
{{- $text := "" }}
{{- if .kind.cluster }}
{{- $text = "([CLUSTER.headGroupSpec.template] + CLUSTER.?workerGroupSpecs.orValue([]).map(part, part.template))" | replace "CLUSTER" .kind.cluster }}
{{- with .kind.hasCluster }}
{{- $text = printf "(%s ? %s : [])" . $text }}
{{- end }}
{{- else }}
{{- $text = "REPLICAS.map(name, REPLICAS[name].template)" | replace "REPLICAS" .kind.replicas }}
{{- end }}
{{- $text | replace "OBJ" .obj }}
{{- end -}}

{{/* How many pods each part of an object has, as the operator counts them; takes kind and obj. */}}
{{- define "drumline.workloadPods" -}}
{{- $text := "" }}
{{- if .kind.cluster }}
{{- $text = "([1] + CLUSTER.?workerGroupSpecs.orValue([]).map(part, part.?suspend.orValue(false) ? 0 : [[int(part.?replicas.orValue(0)), int(part.?minReplicas.orValue(0))].max(), int(part.?maxReplicas.orValue(2147483647))].min() * int(part.?numOfHosts.orValue(1))))" | replace "CLUSTER" .kind.cluster }}
{{- with .kind.hasCluster }}
{{- $text = printf "(%s ? %s : [])" . $text }}
{{- end }}
{{- else }}
{{- $text = "REPLICAS.map(name, int(REPLICAS[name].?replicas.orValue(1)))" | replace "REPLICAS" .kind.replicas }}
{{- end }}
{{- $text | replace "OBJ" .obj }}
{{- end -}}

{{/* What of an object stays, beside its pods' fields, in one list; takes kind and obj. */}}
{{- define "drumline.workloadRest" -}}
{{- $rest := list }}
{{- range .kind.fields }}
{{- $rest = append $rest (printf "[OBJ.spec.?%s]" .) }}
{{- end }}
{{- if .kind.cluster }}
{{- $ray := list }}
{{- range list "rayVersion" "enableInTreeAutoscaling" "autoscalerOptions" "headServiceAnnotations" "gcsFaultToleranceOptions" "managedBy" "upgradeStrategy" "authOptions" }}
{{- $ray = append $ray (printf "[CLUSTER.?%s]" .) }}
{{- end }}
{{- range list "serviceType" "headService" "enableIngress" "rayStartParams" "resources" "labels" }}
{{- $ray = append $ray (printf "[CLUSTER.headGroupSpec.?%s]" .) }}
{{- end }}
{{- range list "groupName" "replicas" "minReplicas" "maxReplicas" "numOfHosts" "suspend" "idleTimeoutSeconds" "rayStartParams" "scaleStrategy" "resources" "labels" }}
{{- $ray = append $ray (printf "CLUSTER.?workerGroupSpecs.orValue([]).map(part, part.?%s)" .) }}
{{- end }}
{{- $text := printf "[%s]" (join ", " $ray) | replace "CLUSTER" .kind.cluster }}
{{- with .kind.hasCluster }}
{{- $text = printf "(%s ? %s : [])" . $text }}
{{- end }}
{{- printf "[%s] + %s" (join ", " $rest) $text | replace "OBJ" .obj }}
{{- else }}
{{- range list "cleanPodPolicy" "ttlSecondsAfterFinished" "activeDeadlineSeconds" "backoffLimit" "schedulingPolicy" "managedBy" }}
{{- $rest = append $rest (printf "[OBJ.spec.?runPolicy.?%s]" .) }}
{{- end }}
{{- printf "[%s]" (join ", " $rest) | replace "OBJ" .obj }}
{{- end }}
{{- end -}}

{{/* Whether the pods stay as they are but for labels, annotations and node selector; takes kind and
fields. A map of CEL has no order, so replicas are compared name by name. */}}
{{- define "drumline.workloadPodsStay" -}}
{{- $of := "[" }}
{{- range .fields }}
{{- $of = printf "%sTEMPLATE.spec.?%s, " $of . }}
{{- end }}
{{- if .kind.cluster }}
{{- $of = printf "%s]" $of | replace "TEMPLATE" "each" }}
{{- range $number, $object := list "object" "oldObject" }}
{{- if $number }} == {{ end }}{{ include "drumline.workloadTemplates" (dict "kind" $.kind "obj" $object) }}.map(each, {{ $of }})
{{- end }}
{{- else }}
{{- $before := .kind.replicas | replace "OBJ" "oldObject" }}
{{- $after := .kind.replicas | replace "OBJ" "object" }}
{{- $of = printf "%sPART.?replicas, PART.?restartPolicy]" ($of | replace "TEMPLATE" "PART.template") }}
{{- $after }}.size() == {{ $before }}.size() && {{ $after }}.all(name, name in {{ $before }} && {{ $of | replace "PART" (printf "%s[name]" $after) }} == {{ $of | replace "PART" (printf "%s[name]" $before) }})
{{- end }}
{{- end -}}

{{/* Of a pod template's spec, which the operator leaves as it is but for its node selector. */}}
{{- define "drumline.podFieldsThatStay" -}}
containers initContainers volumes securityContext serviceAccountName automountServiceAccountToken hostNetwork hostPID hostIPC hostUsers runtimeClassName schedulerName priorityClassName nodeName tolerations affinity topologySpreadConstraints schedulingGates resourceClaims resources imagePullSecrets shareProcessNamespace hostAliases dnsConfig dnsPolicy activeDeadlineSeconds terminationGracePeriodSeconds restartPolicy
{{- end -}}
