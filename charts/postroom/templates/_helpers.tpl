{{- define "postroom.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, with the chart's where it is not in it already. */ -}}
{{- define "postroom.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "postroom.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "postroom.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "postroom.selector" -}}
app.kubernetes.io/name: postroom-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "postroom.labels" -}}
{{ include "postroom.selector" . }}
app.kubernetes.io/part-of: postroom
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "postroom.serviceAccount" -}}
{{- default (include "postroom.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "postroom.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- /* What the operator may do where it works. There is no right on Secrets. */ -}}
{{- define "postroom.rules" -}}
- apiGroups: [postroom.dev]
  resources: [inboxoutboxes]
  verbs: [get, list, watch]
- apiGroups: [postroom.dev]
  resources: [inboxoutboxes/status]
  verbs: [patch]
# Some clusters let only those set a blocking owner reference who may change the owner's finalizers.
- apiGroups: [postroom.dev]
  resources: [inboxoutboxes/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
