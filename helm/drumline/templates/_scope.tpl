{{/* What the operator does where jobs are: in the whole cluster, or in each of watchNamespaces. */}}
{{- define "drumline.jobRules" -}}
- apiGroups: [drumline.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete] # delete: a job's time to live
- apiGroups: [drumline.dev]
  resources: [trainingjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, patch, delete, deletecollection] # patch: drumline.dev/protected
{{- if .Values.foreignPods.evict }}
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create] # of queues with foreignPods.borrowed: Evict
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list] # of groups of pods that leave whole or not at all
{{- end }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create] # a job's token, which is derived and never read back
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create] # dry runs alone (operatorpolicy.yaml): whether one exists, before an eviction
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch] # patch: the node for which a claim's volume is provisioned, an annotation
- apiGroups: [""]
  resources: [resourcequotas, limitranges]
  verbs: [list] # a namespace's, before others are evicted for one of its jobs
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch] # patch: a drain may evict members whose nodes announce their end
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  resourceNames: [drumline-pods] # a namespace's
  verbs: [list, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  resourceNames: [drumline-pods] # a namespace's
  verbs: [list, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch, list] # list: those of pods that do not come up, pod by pod
{{- if .Values.dynamicResources.enabled }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [create]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/status, resourceclaims/binding] # binding: allocation, since 1.36
  verbs: [patch, update]
- apiGroups: [resource.nvidia.com]
  resources: [computedomains] # of jobs with spec.computeDomain
  verbs: [create, get]
- apiGroups: [""]
  resources: [pods/status] # which claim stands for its GPUs
  verbs: [patch]
- apiGroups: [""]
  resources: [pods/binding]
  verbs: [create]
{{- end }}
{{- if .Values.foreignPods.admission.enabled }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, update] # update: one that waits for its queue is resumed
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, update]
{{- $kinds := fromYaml (include "drumline.workloadKinds" .) }}
{{- range .Values.foreignPods.admission.kinds }}
{{- $kind := get $kinds . }}
- apiGroups: [{{ $kind.group }}]
  resources: [{{ $kind.plural }}]
  verbs: [get, list, watch, update]
{{- end }}
{{- end }}
{{- with include "drumline.openshiftRule" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* It is asked of who creates a pod, as of its account: one right covers training pods, too. */}}
{{- define "drumline.openshiftRule" -}}
{{- if and .Values.rbac.openshiftConstraint (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
- apiGroups: [security.openshift.io]
  resources: [securitycontextconstraints]
  resourceNames: [{{ .Values.rbac.openshiftConstraint | quote }}]
  verbs: [use]
{{- end -}}
{{- end -}}

{{/*
Rights of a component of its own where jobs are: in the whole cluster, or in each of
watchNamespaces. Takes root, name (of the account and the roles), labels and rules.
*/}}
{{- define "drumline.rightsWhereJobsAre" -}}
{{- $subject := dict "kind" "ServiceAccount" "name" .name "namespace" .root.Release.Namespace }}
{{- $namespaced := not (empty .root.Values.watchNamespaces) }}
{{- range .root.Values.watchNamespaces | default (list "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "Role" "ClusterRole" $namespaced }}
metadata:
  name: {{ $.name }}{{ ternary "-jobs" "" $namespaced }}
  {{- if $namespaced }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- $.labels | nindent 4 }}
rules: {{- $.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "RoleBinding" "ClusterRoleBinding" $namespaced }}
metadata:
  name: {{ $.name }}{{ ternary "-jobs" "" $namespaced }}
  {{- if $namespaced }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- $.labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ ternary "Role" "ClusterRole" $namespaced }}
  name: {{ $.name }}{{ ternary "-jobs" "" $namespaced }}
subjects:
  - {{ toJson $subject }}
{{- end }}
{{- end -}}

{{/* Of processes beside the operator that watch jobs. */}}
{{- define "drumline.scopeEnv" -}}
{{- with .Values.watchNamespaces }}
- name: DRUMLINE_WATCH_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.installation }}
- name: DRUMLINE_INSTALLATION
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Of the operator's ClusterRole: what another release reads before it is installed. */}}
{{- define "drumline.scopeLabels" -}}
drumline.dev/watches: {{ ternary "namespaces" "everything" (not (empty .Values.watchNamespaces)) }}
{{- with .Values.installation }}
drumline.dev/installation: {{ . | quote }}
{{- end }}
{{- end -}}

{{/*
Two operators would both start the same job, and fill the same GPUs. Helm looks at the cluster and
refuses; `helm template`, and with it GitOps, cannot look.
*/}}
{{- define "drumline.refuseRivals" -}}
{{- if and .Values.installation (not .Values.watchNamespaces) }}
{{- fail "installation needs watchNamespaces, because it names one of several installations in a cluster" }}
{{- end }}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- $notes := .metadata.annotations | default dict }}
{{- $watches := index $labels "drumline.dev/watches" }}
{{- $rival := printf "%s/%s" (index $notes "meta.helm.sh/release-namespace" | default "?") (index $notes "meta.helm.sh/release-name" | default "?") }}
{{- if and $watches (ne $rival (printf "%s/%s" $.Release.Namespace $.Release.Name)) }}
{{- if not $.Values.watchNamespaces }}
{{- fail (printf "release %s runs jobs in this cluster: set watchNamespaces and installation of both releases, or uninstall it" $rival) }}
{{- end }}
{{- if eq $watches "everything" }}
{{- fail (printf "release %s runs the jobs of all namespaces: set its watchNamespaces, or uninstall it" $rival) }}
{{- end }}
{{- if eq (index $notes "meta.helm.sh/release-namespace" | default "") $.Release.Namespace }}
{{- fail (printf "release %s is in this namespace and uses the same Lease for leader election: install this release in another namespace" $rival) }}
{{- end }}
{{- if eq (index $labels "drumline.dev/installation" | default "") $.Values.installation }}
{{- fail (printf "release %s has the pools and queues of installation %q: choose another installation name, and label its pools and queues with it" $rival $.Values.installation) }}
{{- end }}
{{- range splitList "," (index $notes "drumline.dev/watch-namespaces" | default "") }}
{{- if has . $.Values.watchNamespaces }}
{{- fail (printf "release %s already runs the jobs of namespace %s" $rival .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* For namespaceSelectors of what is about jobs. */}}
{{- define "drumline.watchedNamespaces" -}}
{{- with .Values.watchNamespaces -}}
- key: kubernetes.io/metadata.name
  operator: In
  values: {{ toJson . }}
{{- end -}}
{{- end -}}
