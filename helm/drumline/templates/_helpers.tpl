{{- define "drumline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- /* a Service has no dots in its name, and a release may */}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if contains $name $release -}}
{{- $release | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "drumline.operator" -}}
{{ include "drumline.fullname" . }}-operator
{{- end -}}

{{- define "drumline.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "drumline.labels" -}}
{{ include "drumline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Labels as YAML ("labels") with others ("more"), which win. A key that both have stands once: kustomize,
and with it Flux, reads no manifest that repeats one.
*/}}
{{- define "drumline.withLabels" -}}
{{ toYaml (mergeOverwrite (fromYaml .labels) (.more | default dict)) }}
{{- end -}}

{{/* Of what `helm test` makes: not those that the operator's objects select. */}}
{{- define "drumline.doctorLabels" -}}
{{ include "drumline.labels" . | replace "component: operator" "component: doctor" }}
{{- end -}}

{{- define "drumline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "drumline.operator" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "drumline.signingKeySecret" -}}
{{ default (printf "%s-signing-key" (include "drumline.fullname" .)) .Values.signingKey.existingSecret }}
{{- end -}}

{{/*
Arguments: dict "root", "image", and "name", the last part of the repository where none is given. Without
a registry a node would pull from a public one, where the images do not exist.
*/}}
{{- define "drumline.image" -}}
{{- $values := .root.Values -}}
{{- $repository := .image.repository -}}
{{- if not $repository -}}
{{- if $values.image.repository -}}
{{- $repository = regexReplaceAll "[^/]*$" $values.image.repository .name -}}
{{- else if $values.imageRegistry -}}
{{- $repository = printf "drumline/%s" .name -}}
{{- else -}}
{{- fail "set image.repository to your registry: docs/releasing.md. imageRegistry sets the registry of all images" -}}
{{- end -}}
{{- end -}}
{{- with $values.imageRegistry }}{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/*
One lost node or zone takes one replica; a cluster of one node runs all. By affinity: constraints of
topology spread count no node that lacks a label of any of them, so without zones nothing would be spread.
*/}}
{{- define "drumline.operatorSpread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- range $topologyKey, $weight := dict "kubernetes.io/hostname" 100 "topology.kubernetes.io/zone" 50 }}
    - weight: {{ $weight }}
      podAffinityTerm:
        topologyKey: {{ $topologyKey }}
        labelSelector:
          matchLabels: {{- include "drumline.selectorLabels" $ | nindent 12 }}
        matchLabelKeys: [pod-template-hash] # of this version: an update spreads the new ones
    {{- end }}
{{- end }}

{{/* Any pod may say that it trains: what is taken from it is the agent's, and not without end. */}}
{{- define "drumline.trainingScrape" -}}
names: drumline_trainer_.+
sampleLimit: 1000 # an agent of 8 ranks has less than 100
bodySizeLimit: 1MB
{{- end -}}

{{/* Of the notifier's and the archiver's policy: nobody, where metricsFrom names nobody. */}}
{{- define "drumline.metricsIngress" -}}
{{- with .Values.networkPolicy.metricsFrom -}}
ingress: # probes of the kubelet are let through by every network plugin
  - ports:
      - {protocol: TCP, port: http}
    from: {{- toYaml . | nindent 6 }}
{{- else -}}
ingress: []
{{- end -}}
{{- end -}}
